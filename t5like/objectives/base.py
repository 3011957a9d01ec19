"""What every objective is: a function from rows of tokens to inputs and targets, that knows its lengths."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from t5like.objectives.corruption import Ragged
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
  """The ids of a vocabulary that objectives must know."""

  vocab_size: int
  pad: int
  eos: int
  sentinels: tuple[int, ...]  # in the order of use: the first span gets the first


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Tokens a row needs (`raw`) and what it becomes, end-of-sequence included."""

  raw: int
  inputs: int
  targets: int


class Objective(Protocol):
  """Called with tokens [rows, raw] it gives inputs and targets, both without end-of-sequence."""

  name: str

  def lengths(self, inputs: int) -> Lengths:
    """What fits into `inputs` input tokens."""

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    """Raises UserError where the vocabulary cannot serve this objective at these lengths."""

  def __call__(self, tokens: np.ndarray, draws: Draws, special: SpecialTokens) -> tuple[Ragged, Ragged]: ...
