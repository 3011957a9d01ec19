"""The denoising objectives of the T5 paper's sections 3.3.1 to 3.3.3: every token is noise on its own."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import ClassVar

import numpy as np

from t5like.objectives.base import (
  Lengths,
  Objective,
  Pairs,
  Rows,
  SpecialTokens,
  at_least,
  check_mask,
  check_sentinels,
  check_share,
  check_variant,
)
from t5like.objectives.corruption import (
  drop_noise,
  first_spans,
  keep_noise,
  replace_spans,
  replace_tokens,
  spans_after_sentinels,
)
from t5like.objectives.noise import iid
from t5like.objectives.randomness import Draws

# Standard deviations above the mean at which targets are cut (one row in 700), and sentinels run out (one in 30,000).
_ENOUGH_TARGETS, _ENOUGH_SENTINELS = 3.0, 4.0


@dataclasses.dataclass(frozen=True)
class _IidNoise(Objective):
  """Rows as long as the inputs, of which a share of tokens is noise."""

  noise_density: float = 0.15
  variant: str = "paper"
  targets_vary: ClassVar[bool] = True

  def __post_init__(self):
    check_share("noise_density", self.noise_density)
    check_variant(self, self.variant)

  def lengths(self, inputs: int) -> Lengths:
    at_least(self, inputs, 4)
    return Lengths(inputs - 1, inputs, inputs)

  def mask(self, rows: Rows, draws: Draws, special: SpecialTokens) -> np.ndarray:
    mask = iid(draws, rows.lengths, rows.tokens.shape[1], self.noise_density)
    return mask if self.variant == "t5" else mask & special.is_text(rows)


@dataclasses.dataclass(frozen=True)
class IidReplaceSpans(_IidNoise):
  """Each run of noise becomes a sentinel; targets are the runs behind their sentinels (the paper's baseline).

  variant="paper" closes the targets with one more sentinel and gives a run the same sentinel on both
  sides. variant="t5" is the original library: where a row starts with noise, its targets' sentinels
  are one behind those of the inputs, and where it needs more sentinels than there are, ids run down
  into word pieces (you are warned; the paper's 25% and 50% were trained so).
  """

  name: ClassVar[str] = "iid_replace_spans"

  # Targets at 512 inputs, by density in percent, as the paper's runs had them.
  _PUBLISHED: ClassVar[dict[int, int]] = {10: 103, 15: 192, 25: 256, 50: 512}

  def lengths(self, inputs: int) -> Lengths:
    at_least(self, inputs, 4)
    raw = inputs - 1
    published = self._PUBLISHED.get(round(100 * self.noise_density, 6))
    scaled = math.ceil(published * inputs / 512) if published else 0
    # The original cut a third of its targets at 10%; here a row is cut only if it is most unusual.
    enough = math.ceil(self._mean_targets(raw) + _ENOUGH_TARGETS * self._spread_of_targets(raw))
    return Lengths(raw, inputs, scaled if published and self.variant == "t5" else max(scaled, min(enough, 2 * inputs)))

  def _mean_targets(self, raw: int) -> float:
    return raw * self.noise_density + self._mean_spans(raw) + 2  # closing sentinel and end-of-sequence

  def _mean_spans(self, raw: int) -> float:
    p = self.noise_density
    return p + (raw - 1) * p * (1 - p)

  def _spread_of_targets(self, raw: int) -> float:
    """Standard deviation of tokens + spans: a sum of raw terms X(2 - W), X noise here, W noise before."""
    p = self.noise_density
    mean = p * (2 - p)
    variance = p * ((1 - p) * 4 + p) - mean**2
    neighbors = p * p * (2 - p) - mean**2  # X and its right neighbor's term: both noise, the second weighs 1
    return math.sqrt(max(raw * (variance + 2 * neighbors), 0.0))

  def _spread_of_spans(self, raw: int) -> float:
    """Standard deviation of the number of runs in `raw` independent tokens."""
    q = self.noise_density * (1 - self.noise_density)
    return math.sqrt(max(raw * q * (1 - 3 * q), 0.0))

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    self._check_sentinels(lengths.raw, special)

  def _check_sentinels(self, raw: int, special: SpecialTokens) -> None:
    needed = math.ceil(self._mean_spans(raw) + _ENOUGH_SENTINELS * self._spread_of_spans(raw)) + 1
    if self.variant == "paper":
      check_sentinels(self, needed, raw, special, often=" in some rows")
    elif needed > len(special.sentinels):
      warnings.warn(
        f"{self.name} of {raw} tokens at {self.noise_density:.0%} needs up to {needed} sentinels, the "
        f"vocabulary has {len(special.sentinels)}: as in the original, ids run down into word pieces",
        stacklevel=2,
      )

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    mask = self.mask(rows, draws, special)
    if self.variant == "t5":
      below = np.arange(special.vocab_size - 1, -1, -1, dtype=np.int32)
      return Pairs(replace_spans(rows, mask, below), replace_spans(rows, ~mask & rows.valid, below))
    self._check_sentinels(rows.tokens.shape[1], special)
    sentinels = special.sentinel_array
    mask = first_spans(mask, len(sentinels) - 1)  # the rare row that needs more keeps its last runs as text
    return Pairs(replace_spans(rows, mask, sentinels), spans_after_sentinels(rows, mask, sentinels))


@dataclasses.dataclass(frozen=True)
class IidDropTokens(_IidNoise):
  """Noise is removed without a trace; targets are the removed tokens."""

  name: ClassVar[str] = "iid_drop_tokens"

  def lengths(self, inputs: int) -> Lengths:
    at_least(self, inputs, 4)
    raw, p = inputs - 1, self.noise_density
    published = math.ceil(104 * inputs / 512) if p == 0.15 else 0  # as the paper's run
    enough = math.ceil(raw * p + _ENOUGH_TARGETS * math.sqrt(raw * p * (1 - p))) + 1
    return Lengths(raw, inputs, max(published, enough))

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    mask = self.mask(rows, draws, special)
    return Pairs(drop_noise(rows, mask), keep_noise(rows, mask))


@dataclasses.dataclass(frozen=True)
class MassStyle(_IidNoise):
  """Every noise token becomes the first sentinel; targets are the full text."""

  name: ClassVar[str] = "mass_style"

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    check_mask(self, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    return Pairs(replace_tokens(rows, self.mask(rows, draws, special), special.mask), rows)


@dataclasses.dataclass(frozen=True)
class BertStyle(_IidNoise):
  """As MASS-style, but one noise token in ten becomes a random token; targets are the full text.

  variant="t5" draws random tokens from the whole vocabulary behind its first three ids, sentinels
  included; variant="paper" only from text.
  """

  random_share: float = 0.1
  name: ClassVar[str] = "bert_style"

  def __post_init__(self):
    super().__post_init__()
    check_share("random_share", self.random_share, zero=True)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    check_mask(self, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    mask = self.mask(rows, draws, special)
    width = rows.tokens.shape[1]
    drawable = special.drawable if self.variant == "paper" else np.arange(3, special.vocab_size, dtype=np.int32)
    drawn = drawable[draws.integers("random tokens", width, len(drawable))]
    use_random = draws.uniform("random or sentinel", width) < self.random_share
    return Pairs(replace_tokens(rows, mask, np.where(use_random, drawn, np.int32(special.mask))), rows)
