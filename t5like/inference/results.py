"""Result types of a model's methods."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Output:
  """Generated text.

  If a stop text cut it, but the model spelled that text in tokens other than the usual ones and so continued, score and
  number of tokens are those of the output before the cut.
  """

  text: str
  score: float  # log-likelihood, summed over tokens
  tokens: int  # number of tokens, without EOS
  finished: bool  # False: cut at max_length
  ranking: float | None = None  # beam search: the score divided by the length penalty


@dataclasses.dataclass(frozen=True)
class Choice:
  """A candidate answer."""

  text: str
  score: float  # log-likelihood, summed over tokens
  tokens: int
  per_token: float  # mean log-likelihood of a token


@dataclasses.dataclass(frozen=True)
class Label:
  """A class that a head predicts."""

  label: str
  probability: float
  probabilities: dict[str, float]  # of all classes


@dataclasses.dataclass(frozen=True)
class Labels:
  """The labels that a head predicts independently of each other."""

  labels: list[str]  # those with at least the threshold's probability
  probabilities: dict[str, float]  # of all labels


@dataclasses.dataclass(frozen=True)
class Tag:
  """The tag of a word."""

  word: str
  label: str
  probability: float


@dataclasses.dataclass(frozen=True)
class SpanAnswer:
  """A part of a passage that answers a question; '' for no answer."""

  answer: str
  probability: float  # among all spans
  score: float  # sum of the logits of its first and last token
  null_score: float  # the same of no answer


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A token for a mask, or a span for a sentinel."""

  token: str
  probability: float


@dataclasses.dataclass(frozen=True)
class Filled:
  """A text with its masks filled."""

  text: str  # with the most likely candidate for each mask
  masks: list[list[Candidate]]  # per mask, most likely first


@dataclasses.dataclass(frozen=True)
class Inside:
  """Arrays of a model's layers for one text, as float32; None for stacks that the model has not, or that did not run.

  Special tokens are included, padding is not. Learned prompts and prefixes are left out.
  """

  tokens: list[str]  # pieces of the text
  target_tokens: list[str] | None = None  # what the decoder of an encoder-decoder reads, after its start token
  encoder: np.ndarray | None = None
  decoder: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Attention(Inside):
  """Attention weights [layers, heads, queries, keys]: `encoder` and `decoder` attend to themselves.

  A row of weights sums to 1, but for what learned prefixes receive.
  """

  cross: np.ndarray | None = None  # the decoder's to the encoder: [layers, heads, target tokens, tokens]


@dataclasses.dataclass(frozen=True)
class HiddenStates(Inside):
  """States [layers + 1, tokens, embed]: the embeddings, then each layer's, the last after the final norm."""


@dataclasses.dataclass(frozen=True)
class WordNeighbor:
  """A word in a text."""

  word: str
  text: str
  number: int  # of the text, from 0
  start: int  # the word's first character in it
  similarity: float  # cosine
