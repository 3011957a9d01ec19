"""What a model's methods return."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Output:
  """Generated text."""

  text: str
  score: float  # the log-likelihood of its tokens
  tokens: int  # their number, without end-of-sequence
  finished: bool  # False: it ended at max_length
  ranking: float | None = None  # beam search orders by this: the score over its length penalty


@dataclasses.dataclass(frozen=True)
class Choice:
  """A candidate answer."""

  text: str
  score: float  # the log-likelihood, the sum over its tokens
  tokens: int
  per_token: float  # their mean


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A token under a mask, or a span for a sentinel."""

  token: str
  probability: float


@dataclasses.dataclass(frozen=True)
class Filled:
  """A text whose masks are filled in."""

  text: str  # with the likeliest candidate for each mask
  masks: list[list[Candidate]]  # for each mask, the likeliest first
