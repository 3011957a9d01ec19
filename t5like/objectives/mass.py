"""MASS (Song et al. 2019): predict a contiguous half of a text from the rest."""

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
  check_mask,
  check_min_length,
)
from t5like.objectives.corruption import keep_noise, replace_tokens
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class Mass(Objective):
  """Masks one contiguous fragment, a fraction `share` of the tokens; the fragment is the target.

  As in the original, a tenth of the fragment's inputs become random tokens and a tenth are kept.
  """

  share: float = 0.5
  mask_share: float = 0.8
  random_share: float = 0.1
  name: ClassVar[str] = "mass"

  def __post_init__(self):
    check_fraction("share", self.share)

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 4)
    return Lengths(inputs - 1, inputs, round((inputs - 1) * self.share) + 1)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    check_mask(self, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    width = rows.tokens.shape[1]
    size = np.rint(rows.lengths * self.share).astype(np.int64)
    start = draws.integers("start of the fragment", 1, (rows.lengths - size + 1)[:, None])
    positions = np.arange(width)[None, :]
    fragment = (positions >= start) & (positions < start + size[:, None]) & special.is_text(rows)
    action = draws.uniform("mask, random or kept", width)
    drawn = special.replacement_ids[draws.integers("random tokens", width, len(special.replacement_ids))]
    hidden = np.where(action < self.mask_share, np.int32(special.mask), drawn)
    shown = fragment & (action < self.mask_share + self.random_share)
    return Pairs(replace_tokens(rows, shown, hidden), keep_noise(rows, fragment))
