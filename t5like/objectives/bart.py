"""BART's denoising (Lewis et al. 2019, section 2.2): five kinds of noise, alone or combined; targets are the text."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from t5like.errors import UserError, nearest
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
from t5like.objectives.corruption import drop_noise, reorder, replace_tokens, span_starts
from t5like.objectives.noise import exact_count, place_spans_randomly, sample_span_lengths
from t5like.objectives.ragged import Ragged, within
from t5like.objectives.randomness import Draws

NOISES = ("none", "mask", "delete", "infill")


@dataclasses.dataclass(frozen=True)
class Bart(Objective):
  """Permutes sentences, hides tokens and rotates the document, in this order, each if enabled.

  noise: "mask" replaces each chosen token with a mask, "delete" removes them, "infill" replaces a span
  of Poisson-distributed length with one mask; a span of length 0 inserts a mask between two tokens.
  The defaults are BART's own: 30% infilling with mean 3, and sentence permutation.
  """

  noise: str = "infill"
  noise_density: float = 0.3
  mean_span_length: float = 3.0
  permute_sentences: bool = True
  rotate: bool = False
  name: ClassVar[str] = "bart"

  def __post_init__(self):
    check_fraction("noise_density", self.noise_density)
    if self.noise not in NOISES:
      raise UserError(
        f"unknown BART noise: {self.noise!r}", nearest=nearest(self.noise, NOISES), known=", ".join(NOISES)
      )

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 8)
    return Lengths(inputs - 1, inputs, inputs)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    if self.noise in ("mask", "infill"):
      check_mask(self, special)
    if self.permute_sentences and not special.sentence_ends:
      raise UserError(
        f"{self.name} permutes sentences, but the vocabulary has no sentence ends",
        try_="--gin.bart.permute_sentences=False, or a vocabulary with pieces for . ! ?",
      )

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    text = Ragged(rows.tokens, rows.lengths)
    inputs = permuted_sentences(text, draws, special) if self.permute_sentences else text
    inputs = self._hidden(inputs, draws, special)
    return Pairs(rotated(inputs, draws) if self.rotate else inputs, text)

  def _hidden(self, text: Ragged, draws: Draws, special: SpecialTokens) -> Ragged:
    if self.noise == "none":
      return text
    if self.noise == "infill":
      return self._infilled(text, draws, special)
    candidates = special.is_text(text)
    counts = np.minimum(np.rint(text.lengths * self.noise_density).astype(np.int64), candidates.sum(axis=1))
    chosen = exact_count(draws, candidates, counts)
    return drop_noise(text, chosen) if self.noise == "delete" else replace_tokens(text, chosen, special.mask)

  def _infilled(self, text: Ragged, draws: Draws, special: SpecialTokens) -> Ragged:
    width = text.tokens.shape[1]
    budgets = np.rint(text.lengths * self.noise_density).astype(np.int64)
    lengths, used = sample_span_lengths(draws, budgets, _poisson(self.mean_span_length))
    noise = place_spans_randomly(draws, text.lengths, width, lengths) & special.is_text(text)
    # Spans of length 0: each inserts a mask before a token.
    empty = np.count_nonzero(used & (lengths == 0), axis=1)
    free = text.valid & ~noise
    inserted = exact_count(draws, free, np.minimum(empty, np.count_nonzero(free, axis=1)))
    masks = span_starts(noise) | inserted
    # Two slots for each token: a mask before it, and the token.
    both = np.stack([np.full_like(text.tokens, special.mask), text.tokens], axis=2).reshape(len(noise), -1)
    keep = np.stack([masks, free], axis=2).reshape(len(noise), -1)
    return Ragged.gather(both, keep)


def permuted_sentences(text: Ragged, draws: Draws, special: SpecialTokens) -> Ragged:
  """Permutes sentences, which end at the vocabulary's sentence ends."""
  ends = np.isin(text.tokens, np.asarray(special.sentence_ends, np.int32)) & text.valid
  sentence = np.cumsum(ends, axis=1) - ends  # [rows, width], from 0
  keys = draws.bits("order of sentences", int(sentence.max(initial=0)) + 1) >> np.uint64(1)
  key = np.take_along_axis(keys, sentence, axis=1)
  key[~text.valid] = np.uint64(2**64 - 1)
  return reorder(text, np.argsort(key, axis=1, kind="stable"))


def rotated(text: Ragged, draws: Draws) -> Ragged:
  """Rotates each row to start at a random token."""
  positions = np.arange(text.tokens.shape[1])[None, :]
  lengths = np.maximum(text.lengths, 1)[:, None]
  start = draws.integers("first token", 1, lengths)
  order = np.where(within(text.lengths, positions.shape[1]), (positions + start) % lengths, positions)
  return reorder(text, order)


def _poisson(mean: float) -> np.ndarray:
  """Returns the probabilities of 0, 1, 2, ... up to a negligible tail."""
  return np.array([math.exp(-mean) * mean**k / math.factorial(k) for k in range(int(mean + 10 * math.sqrt(mean)) + 10)])
