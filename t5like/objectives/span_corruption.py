"""Span corruption (Raffel et al. 2019, section 3.3.4): the objective of T5's final models."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from t5like.errors import UserError
from t5like.objectives.base import (
  Lengths,
  Objective,
  Pairs,
  Rows,
  SpecialTokens,
  check_fraction,
  check_min_length,
  check_sentinels,
  check_variant,
)
from t5like.objectives.corruption import first_spans, replace_spans, spans_after_sentinels
from t5like.objectives.noise import noise_counts, random_spans
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Objective):
  """Replaces random spans with sentinels; targets are the spans, each after its sentinel.

  variant="paper" ends the targets with one more sentinel, as in the paper's figure 2, and allows
  spans anywhere. variant="t5" reproduces the original library: no final sentinel (targets are one
  token shorter), the first token is never noise, the last always is.
  """

  noise_density: float = 0.15
  mean_span_length: float = 3.0
  variant: str = "paper"
  name: ClassVar[str] = "span_corruption"

  def __post_init__(self):
    check_fraction("noise_density", self.noise_density)
    if not self.mean_span_length >= 1:
      raise UserError(f"invalid mean_span_length: {self.mean_span_length} (expected at least 1)")
    check_variant(self)

  @property
  def _final_sentinels(self) -> int:
    return int(self.variant == "paper")

  def _lengths_for(self, raw: int) -> Lengths:
    noise, spans = noise_counts(raw, self.noise_density, self.mean_span_length)
    if self.variant == "t5":
      # Unlike its noise function, the original's length helper may count 0 spans: a short row is then trimmed.
      noise = round(raw * self.noise_density)
      spans = round(noise / self.mean_span_length)
    return Lengths(raw, raw - noise + spans + 1, noise + spans + self._final_sentinels + 1)

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 4)
    raw = inputs - 1
    while self._lengths_for(raw + 1).inputs <= inputs:
      raw += 1
    lengths = self._lengths_for(raw)
    if self.noise_density == 0.5 and lengths.targets > lengths.inputs:
      # As in the original: at 50% noise, one raw token less keeps inputs and targets at the requested length. Where the
      # number of noise tokens is the same, the original cuts off the end.
      targets = lengths.targets - 1 if self.variant == "t5" else self._lengths_for(raw - 1).targets
      lengths = Lengths(raw - 1, lengths.inputs, targets)
    return dataclasses.replace(lengths, inputs=inputs)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    self._check_sentinels(lengths.raw, special)

  def _check_sentinels(self, raw: int, special: SpecialTokens) -> None:
    _, spans = noise_counts(raw, self.noise_density, self.mean_span_length)
    check_sentinels(self, spans + self._final_sentinels, raw, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    width = rows.tokens.shape[1]
    self._check_sentinels(width, special)
    mask = random_spans(
      draws, rows.lengths, width, self.noise_density, self.mean_span_length, ends_free=self.variant == "paper"
    )
    if self.variant == "t5":
      # As in the original: runs of text become sentinels, which gives the same targets, as text and noise alternate.
      text = ~mask & rows.valid
      return Pairs(replace_spans(rows, mask, special.sentinel_array), replace_spans(rows, text, special.sentinel_array))
    if special.reserved[rows.tokens[mask]].any():  # a special token inside a span is kept and splits it
      mask = first_spans(mask & special.is_text(rows), len(special.sentinels) - 1)
    return Pairs(
      replace_spans(rows, mask, special.sentinel_array), spans_after_sentinels(rows, mask, special.sentinel_array)
    )
