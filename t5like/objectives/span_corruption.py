"""Span corruption (Raffel et al. 2019, section 3.3.4): the objective of T5's final models."""

from __future__ import annotations

import dataclasses

import numpy as np

from t5like.errors import UserError, nearest
from t5like.objectives.base import Lengths, SpecialTokens
from t5like.objectives.corruption import Ragged, replace_spans, spans_after_sentinels
from t5like.objectives.noise import noise_counts, random_spans
from t5like.objectives.randomness import Draws

VARIANTS = ("paper", "t5")


@dataclasses.dataclass(frozen=True)
class SpanCorruption:
  """Random spans are dropped from the text and predicted, each behind its sentinel.

  variant="paper" closes the targets with one more sentinel, as the paper's figure 2 does, and lets
  spans fall anywhere. variant="t5" gives what the original library gives: no closing sentinel
  (targets are one token shorter), the first token never noise, the last always.
  """

  noise_density: float = 0.15
  mean_span_length: float = 3.0
  variant: str = "paper"
  name: str = "span_corruption"

  def __post_init__(self):
    if not 0 < self.noise_density < 1:
      raise UserError(f"noise_density must lie between 0 and 1, not {self.noise_density}")
    if not self.mean_span_length >= 1:
      raise UserError(f"mean_span_length must be at least 1, not {self.mean_span_length}")
    if self.variant not in VARIANTS:
      raise UserError(
        f"no variant {self.variant!r} of span corruption", nearest=nearest(self.variant, VARIANTS), known=VARIANTS
      )

  @property
  def _closing(self) -> bool:
    return self.variant == "paper"

  def _lengths_of(self, raw: int) -> Lengths:
    noise, spans = noise_counts(raw, self.noise_density, self.mean_span_length)
    return Lengths(raw, raw - noise + spans + 1, noise + spans + int(self._closing) + 1)

  def lengths(self, inputs: int) -> Lengths:
    if inputs < 4:
      raise UserError(
        f"span corruption needs at least 4 input tokens, not {inputs}", try_="--gin.LENGTHS={'inputs': 512}"
      )
    raw = inputs - 1
    while self._lengths_of(raw + 1).inputs <= inputs:
      raw += 1
    lengths = self._lengths_of(raw)
    if self.noise_density == 0.5 and lengths.targets > lengths.inputs:
      # As the original: at half noise one raw token less keeps both sides at the round number asked for.
      lengths = self._lengths_of(raw - 1)
    return lengths

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    _, spans = noise_counts(lengths.raw, self.noise_density, self.mean_span_length)
    needed = spans + int(self._closing)
    if needed > len(special.sentinels):
      raise UserError(
        f"span corruption of {lengths.raw} tokens needs {needed} sentinels, "
        f"the vocabulary has {len(special.sentinels)}",
        try_="a longer mean_span_length, a shorter LENGTHS['inputs'], or a vocabulary with more extra_ids",
      )

  def __call__(self, tokens: np.ndarray, draws: Draws, special: SpecialTokens) -> tuple[Ragged, Ragged]:
    mask = random_spans(
      draws,
      tokens.shape[1],
      self.noise_density,
      self.mean_span_length,
      ends_free=self.variant == "paper",
    )
    sentinels = np.asarray(special.sentinels, np.int32)
    return (
      replace_spans(tokens, mask, sentinels),
      spans_after_sentinels(tokens, mask, sentinels, closing=self._closing),
    )
