"""Objectives on token order: deshuffling and permuted language modeling."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from t5like.objectives.base import (
  Lengths,
  Objective,
  Pairs,
  Rows,
  SpecialTokens,
  check_fraction,
  check_min_length,
  check_sentinels,
)
from t5like.objectives.corruption import reorder
from t5like.objectives.noise import exact_count
from t5like.objectives.ragged import Ragged, numbered
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class Deshuffling(Objective):
  """Inputs are the tokens of a text in random order, targets the text (Liu et al. 2019)."""

  name: ClassVar[str] = "deshuffling"
  unit: ClassVar[str] = "document"

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 4)
    return Lengths(inputs - 1, inputs, inputs)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    return Pairs(reorder(rows, draws.orders("shuffled tokens", rows.lengths, rows.tokens.shape[1])), rows)


@dataclasses.dataclass(frozen=True)
class PermutedLM(Objective):
  """Replaces a sixth of the tokens with one sentinel each and predicts them in random order.

  The BART paper's comparison (Lewis et al. 2019, section 4.1) of XLNet's idea (Yang et al. 2019), for any
  encoder-decoder. It is not XLNet, whose model has two streams of attention and relative positions. The sentinel
  before a target identifies the token.
  """

  share: float = 1 / 6
  name: ClassVar[str] = "permuted_lm"

  def __post_init__(self):
    check_fraction("share", self.share)

  def _hidden(self, lengths: int | np.ndarray) -> int | np.ndarray:
    return (np.asarray(lengths) * self.share).astype(np.int64)

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 8)
    return Lengths(inputs - 1, inputs, 2 * int(self._hidden(inputs - 1)) + 1)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    check_sentinels(self, int(self._hidden(lengths.raw)), lengths.raw, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    text = special.is_text(rows)
    counts = np.minimum(self._hidden(rows.lengths), np.count_nonzero(text, axis=1))
    mask = exact_count(draws, text, counts)
    inputs = rows.tokens.astype(np.int32, copy=True)
    inputs[mask] = special.sentinel_array[numbered(counts)]
    hidden, sentinels = Ragged.gather(rows.tokens, mask), Ragged.gather(inputs, mask)
    order = draws.orders("order of prediction", counts, hidden.tokens.shape[1])
    both = np.stack([reorder(sentinels, order).tokens, reorder(hidden, order).tokens], axis=2)  # [rows, hidden, 2]
    return Pairs(Ragged(inputs, rows.lengths), Ragged(both.reshape(len(both), -1), 2 * counts))
