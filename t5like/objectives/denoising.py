"""The denoising objectives of the T5 paper's sections 3.3.1 to 3.3.3, with i.i.d. noise."""

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
  check_fraction,
  check_mask,
  check_min_length,
  check_sentinels,
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

# Standard deviations above the mean at which targets are trimmed (one row in 700), and sentinels run out (1 in 30,000).
_TARGETS_SIGMAS, _SENTINELS_SIGMAS = 3.0, 4.0


@dataclasses.dataclass(frozen=True)
class _IidNoise(Objective):
  """Rows as long as the inputs, in which each token is noise with probability `noise_density`."""

  noise_density: float = 0.15
  variant: str = "paper"
  targets_vary: ClassVar[bool] = True

  def __post_init__(self):
    check_fraction("noise_density", self.noise_density)
    check_variant(self)

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 4)
    return Lengths(inputs - 1, inputs, inputs)

  def mask(self, rows: Rows, draws: Draws, special: SpecialTokens) -> np.ndarray:
    mask = iid(draws, rows.lengths, rows.tokens.shape[1], self.noise_density)
    return mask if self.variant == "t5" else mask & special.is_text(rows)


@dataclasses.dataclass(frozen=True)
class IidReplaceSpans(_IidNoise):
  """Replaces each run of noise with a sentinel; targets are the runs after their sentinels (the paper's baseline).

  variant="paper" ends the targets with one more sentinel and uses the same sentinel for a run in inputs
  and targets. variant="t5" reproduces the original library: if a row starts with noise, its targets'
  sentinels lag those of the inputs by one, and if sentinels run out, ids continue down into word pieces
  (with a warning; the paper's 25% and 50% were trained this way).
  """

  name: ClassVar[str] = "iid_replace_spans"

  # Target lengths of the paper's runs at 512 inputs, by density in percent.
  _PUBLISHED: ClassVar[dict[int, int]] = {10: 103, 15: 192, 25: 256, 50: 512}

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 4)
    raw = inputs - 1
    published = self._PUBLISHED.get(round(100 * self.noise_density, 6))
    scaled = math.ceil(published * inputs / 512) if published else 0
    # The original trimmed a third of its targets at 10%; here only outliers are trimmed.
    upper = math.ceil(self._mean_targets(raw) + _TARGETS_SIGMAS * self._std_of_targets(raw))
    return Lengths(raw, inputs, scaled if published and self.variant == "t5" else max(scaled, min(upper, 2 * inputs)))

  def _mean_targets(self, raw: int) -> float:
    return raw * self.noise_density + self._mean_spans(raw) + 2  # final sentinel and end-of-sequence

  def _mean_spans(self, raw: int) -> float:
    p = self.noise_density
    return p + (raw - 1) * p * (1 - p)

  def _std_of_targets(self, raw: int) -> float:
    """Returns the standard deviation of tokens + spans: a sum of raw terms X(2 - W), X noise here, W noise before."""
    p = self.noise_density
    mean = p * (2 - p)
    variance = p * ((1 - p) * 4 + p) - mean**2
    neighbors = p * p * (2 - p) - mean**2  # X and its right neighbor's term: both noise, the second counts 1
    return math.sqrt(max(raw * (variance + 2 * neighbors), 0.0))

  def _std_of_spans(self, raw: int) -> float:
    """Returns the standard deviation of the number of runs in `raw` independent tokens."""
    q = self.noise_density * (1 - self.noise_density)
    return math.sqrt(max(raw * q * (1 - 3 * q), 0.0))

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    self._check_sentinels(lengths.raw, special)

  def _check_sentinels(self, raw: int, special: SpecialTokens) -> None:
    needed = math.ceil(self._mean_spans(raw) + _SENTINELS_SIGMAS * self._std_of_spans(raw)) + 1
    if self.variant == "paper":
      check_sentinels(self, needed, raw, special, often=" in some rows")
    elif needed > len(special.sentinels):
      warnings.warn(
        f"{self.name} of {raw} tokens at {self.noise_density:.0%} needs up to {needed} sentinels, but the "
        f"vocabulary has {len(special.sentinels)}: as in the original, ids continue down into word pieces",
        stacklevel=2,
      )

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    mask = self.mask(rows, draws, special)
    if self.variant == "t5":
      descending = np.arange(special.vocab_size - 1, -1, -1, dtype=np.int32)
      return Pairs(replace_spans(rows, mask, descending), replace_spans(rows, ~mask & rows.valid, descending))
    self._check_sentinels(rows.tokens.shape[1], special)
    sentinels = special.sentinel_array
    mask = first_spans(mask, len(sentinels) - 1)  # a rare row that needs more keeps its last runs as text
    return Pairs(replace_spans(rows, mask, sentinels), spans_after_sentinels(rows, mask, sentinels))


@dataclasses.dataclass(frozen=True)
class IidDropTokens(_IidNoise):
  """Drops the noise tokens; targets are the dropped tokens."""

  name: ClassVar[str] = "iid_drop_tokens"

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 4)
    raw, p = inputs - 1, self.noise_density
    published = math.ceil(104 * inputs / 512) if p == 0.15 else 0  # as in the paper's run
    upper = math.ceil(raw * p + _TARGETS_SIGMAS * math.sqrt(raw * p * (1 - p))) + 1
    return Lengths(raw, inputs, max(published, upper))

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    mask = self.mask(rows, draws, special)
    return Pairs(drop_noise(rows, mask), keep_noise(rows, mask))


@dataclasses.dataclass(frozen=True)
class MassStyle(_IidNoise):
  """Replaces every noise token with the first sentinel; targets are the full text."""

  name: ClassVar[str] = "mass_style"

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    check_mask(self, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    return Pairs(replace_tokens(rows, self.mask(rows, draws, special), special.mask), rows)


@dataclasses.dataclass(frozen=True)
class BertStyle(_IidNoise):
  """Like MASS-style, but replaces one noise token in ten with a random token; targets are the full text.

  variant="t5" samples random tokens from all ids but the first three, sentinels included;
  variant="paper" only from text.
  """

  random_share: float = 0.1
  name: ClassVar[str] = "bert_style"

  def __post_init__(self):
    super().__post_init__()
    check_fraction("random_share", self.random_share, zero=True)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    check_mask(self, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    mask = self.mask(rows, draws, special)
    width = rows.tokens.shape[1]
    replacement_ids = (
      special.replacement_ids if self.variant == "paper" else np.arange(3, special.vocab_size, dtype=np.int32)
    )
    drawn = replacement_ids[draws.integers("random tokens", width, len(replacement_ids))]
    use_random = draws.uniform("random or sentinel", width) < self.random_share
    return Pairs(replace_tokens(rows, mask, np.where(use_random, drawn, np.int32(special.mask))), rows)
