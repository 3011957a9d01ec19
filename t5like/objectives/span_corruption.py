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
  at_least,
  check_sentinels,
  check_share,
  check_variant,
)
from t5like.objectives.corruption import first_spans, replace_spans, spans_after_sentinels
from t5like.objectives.noise import noise_counts, random_spans
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Objective):
  """Random spans are dropped from the text and predicted, each behind its sentinel.

  variant="paper" closes the targets with one more sentinel, as the paper's figure 2 does, and lets
  spans fall anywhere. variant="t5" gives what the original library gives: no closing sentinel
  (targets are one token shorter), the first token never noise, the last always.
  """

  noise_density: float = 0.15
  mean_span_length: float = 3.0
  variant: str = "paper"
  name: ClassVar[str] = "span_corruption"

  def __post_init__(self):
    check_share("noise_density", self.noise_density)
    if not self.mean_span_length >= 1:
      raise UserError(f"mean_span_length must be at least 1, not {self.mean_span_length}")
    check_variant(self, self.variant)

  @property
  def _closing(self) -> int:
    return int(self.variant == "paper")

  def _lengths_of(self, raw: int) -> Lengths:
    noise, spans = noise_counts(raw, self.noise_density, self.mean_span_length)
    if self.variant == "t5":
      # Its planner, unlike its noise, may count no span at all: a short row is then cut at its end.
      noise = round(raw * self.noise_density)
      spans = round(noise / self.mean_span_length)
    return Lengths(raw, raw - noise + spans + 1, noise + spans + self._closing + 1)

  def lengths(self, inputs: int) -> Lengths:
    at_least(self, inputs, 4)
    raw = inputs - 1
    while self._lengths_of(raw + 1).inputs <= inputs:
      raw += 1
    lengths = self._lengths_of(raw)
    if self.noise_density == 0.5 and lengths.targets > lengths.inputs:
      # As the original: at half noise one raw token less keeps both sides at the round number asked for.
      lengths = Lengths(raw - 1, lengths.inputs, lengths.targets - 1)
    return dataclasses.replace(lengths, inputs=inputs)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    self._check_sentinels(lengths.raw, special)

  def _check_sentinels(self, raw: int, special: SpecialTokens) -> None:
    _, spans = noise_counts(raw, self.noise_density, self.mean_span_length)
    check_sentinels(self, spans + self._closing, raw, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    width = rows.tokens.shape[1]
    self._check_sentinels(width, special)
    mask = random_spans(
      draws, rows.lengths, width, self.noise_density, self.mean_span_length, ends_free=self.variant == "paper"
    )
    if self.variant == "t5":
      # As there: what is no noise becomes a sentinel. The same targets, since text and noise take turns.
      return Pairs(
        replace_spans(rows, mask, special.sentinel_array), replace_spans(rows, ~mask, special.sentinel_array)
      )
    if special.reserved[rows.tokens[mask]].any():  # a special token inside a span stays, and parts it in two
      mask = first_spans(mask & special.is_text(rows), len(special.sentinels) - 1)
    return Pairs(
      replace_spans(rows, mask, special.sentinel_array), spans_after_sentinels(rows, mask, special.sentinel_array)
    )
