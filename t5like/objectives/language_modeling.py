"""Language modeling objectives."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from t5like.objectives.base import Lengths, Objective, Pairs, Rows, SpecialTokens, check_min_length
from t5like.objectives.corruption import drop_noise, keep_noise
from t5like.objectives.ragged import Ragged, within
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class PrefixLM(Objective):
  """Splits a text at a random point: inputs are the prefix, targets the rest (Raffel et al. 2019, section 3.3.1)."""

  name: ClassVar[str] = "prefix_lm"
  unit: ClassVar[str] = "document"

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 4)
    return Lengths(inputs - 1, inputs, inputs)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    # At least one token on each side; a text of one token becomes targets only.
    split = 1 + draws.integers("split point", 1, np.maximum(rows.lengths - 1, 1)[:, None])[:, 0]
    prefix = within(np.minimum(split, rows.lengths - 1), rows.tokens.shape[1])
    return Pairs(keep_noise(rows, prefix), drop_noise(rows, prefix))


@dataclasses.dataclass(frozen=True)
class _NoInputs(Objective):
  """Objectives for decoders: all text is target."""

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 2)
    raw = inputs - int(self.closed) + int(self.shifted)
    return Lengths(raw, 0, inputs)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    empty = Ragged(np.zeros((len(rows.tokens), 0), np.int32), np.zeros(len(rows.tokens), np.int64))
    return Pairs(empty, Ragged(rows.tokens, rows.lengths))


@dataclasses.dataclass(frozen=True)
class LM(_NoInputs):
  """Documents end to end, with end-of-sequence at the end of every row (the paper's language models, Table 2)."""

  name: ClassVar[str] = "lm"


@dataclasses.dataclass(frozen=True)
class FullLM(_NoInputs):
  """Like `lm`, with end-of-sequence only at the end of documents (the t5 library's full_lm)."""

  name: ClassVar[str] = "full_lm"
  separated: ClassVar[bool] = True
  closed: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class CausalLM(_NoInputs):
  """GPT's objective: like `full_lm`, but without a start token, so a row's first token is not predicted."""

  name: ClassVar[str] = "causal_lm"
  separated: ClassVar[bool] = True
  closed: ClassVar[bool] = False
  shifted: ClassVar[bool] = True
