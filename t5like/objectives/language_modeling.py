"""Objectives that predict text from the text before it."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from t5like.objectives.base import Lengths, Objective, Pairs, Rows, SpecialTokens, at_least
from t5like.objectives.corruption import drop_noise, keep_noise
from t5like.objectives.ragged import Ragged, within
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class PrefixLM(Objective):
  """A text is split at a random point: inputs are what is before it, targets the rest (Raffel et al., 3.3.1)."""

  name: ClassVar[str] = "prefix_lm"
  unit: ClassVar[str] = "document"

  def lengths(self, inputs: int) -> Lengths:
    at_least(self, inputs, 4)
    return Lengths(inputs - 1, inputs, inputs)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    # At least one token on each side; a text of one token is all targets.
    split = 1 + draws.integers("split point", 1, np.maximum(rows.lengths - 1, 1)[:, None])[:, 0]
    prefix = within(np.minimum(split, rows.lengths - 1), rows.tokens.shape[1])
    return Pairs(keep_noise(rows, prefix), drop_noise(rows, prefix))


@dataclasses.dataclass(frozen=True)
class _NoInputs(Objective):
  """All text is target: for decoders."""

  def lengths(self, inputs: int) -> Lengths:
    at_least(self, inputs, 2)
    raw = inputs - int(self.closed) + int(self.shifted)
    return Lengths(raw, 0, inputs)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    nothing = Ragged(np.zeros((len(rows.tokens), 0), np.int32), np.zeros(len(rows.tokens), np.int64))
    return Pairs(nothing, Ragged(rows.tokens, rows.lengths))


@dataclasses.dataclass(frozen=True)
class LM(_NoInputs):
  """Documents end to end, every row closed by end-of-sequence (the paper's language models, Table 2)."""

  name: ClassVar[str] = "lm"


@dataclasses.dataclass(frozen=True)
class FullLM(_NoInputs):
  """As `lm`, with end-of-sequence where documents end and nowhere else (the t5 library's full_lm)."""

  name: ClassVar[str] = "full_lm"
  separated: ClassVar[bool] = True
  closed: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class CausalLM(_NoInputs):
  """GPT's: as `full_lm`, but a row's first token is given and each token predicts the next, without a start token."""

  name: ClassVar[str] = "causal_lm"
  separated: ClassVar[bool] = True
  closed: ClassVar[bool] = False
  shifted: ClassVar[bool] = True
