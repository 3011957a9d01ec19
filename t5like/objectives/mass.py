"""MASS (Song et al. 2019): predict a contiguous half of a text from the rest."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from t5like.objectives.base import Lengths, Objective, Pairs, Rows, SpecialTokens, at_least, check_mask, check_share
from t5like.objectives.corruption import keep_noise, replace_tokens
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class Mass(Objective):
  """One fragment of `share` of the tokens is masked, token by token, and is the target.

  As in the original, a tenth of the fragment's inputs are random tokens and a tenth stay as they are.
  """

  share: float = 0.5
  mask_share: float = 0.8
  random_share: float = 0.1
  name: ClassVar[str] = "mass"

  def __post_init__(self):
    check_share("share", self.share)

  def lengths(self, inputs: int) -> Lengths:
    at_least(self, inputs, 4)
    return Lengths(inputs - 1, inputs, round((inputs - 1) * self.share) + 1)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    check_mask(self, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    width = rows.tokens.shape[1]
    size = np.rint(rows.lengths * self.share).astype(np.int64)
    start = draws.integers("start of the fragment", 1, (rows.lengths - size + 1)[:, None])
    places = np.arange(width)[None, :]
    fragment = (places >= start) & (places < start + size[:, None]) & special.is_text(rows)
    fate = draws.uniform("mask, random or kept", width)
    drawn = special.drawable[draws.integers("random tokens", width, len(special.drawable))]
    hidden = np.where(fate < self.mask_share, np.int32(special.mask), drawn)
    shown = fragment & (fate < self.mask_share + self.random_share)
    return Pairs(replace_tokens(rows, shown, hidden), keep_noise(rows, fragment))
