"""Masked language modeling for encoders: BERT, RoBERTa, SpanBERT, ALBERT, and ELECTRA's generator."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from t5like.errors import UserError
from t5like.objectives.base import (
  Lengths,
  Masked,
  Objective,
  Rows,
  SpecialTokens,
  check_fraction,
  check_mask,
  check_min_length,
)
from t5like.objectives.corruption import span_starts
from t5like.objectives.noise import exact_count, place_spans_randomly, sample_span_lengths
from t5like.objectives.ragged import Ragged, within
from t5like.objectives.randomness import Draws
from t5like.objectives.segments import join_segments


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
  """Predicts a fraction of the tokens in place, most of them masked.

  Of the predicted tokens, `mask_share` become [MASK], `random_share` a random token, the rest is kept
  (Devlin et al. 2018: 80/10/10). Masking is dynamic (different every epoch), as in RoBERTa; BERT
  duplicated its corpus ten times. The defaults are BERT's; its 128-token phase predicts at most 20.

  next_sentence: adds next-sentence prediction: in half of the rows, the second text is from another document.
  sentence_order: adds ALBERT's sentence-order prediction (Lan et al. 2019): in half of the rows, two consecutive texts
  are swapped (label 1).
  whole_sentences: rows are complete sentences, across document boundaries, without pairs
  (RoBERTa's full-sentences). Otherwise a row is a piece of one document.
  """

  noise_density: float = 0.15
  mask_share: float = 0.8
  random_share: float = 0.1
  max_predictions: int | None = None
  next_sentence: bool = False
  whole_sentences: bool = False
  sentence_order: bool = False
  name: ClassVar[str] = "masked_lm"
  makes: ClassVar[str] = "masked"

  def __post_init__(self):
    check_fraction("noise_density", self.noise_density)
    if not (0 <= self.mask_share and 0 <= self.random_share and self.mask_share + self.random_share <= 1 + 1e-9):
      raise UserError(
        f"invalid mask_share and random_share: {self.mask_share} and {self.random_share} "
        "(expected non-negative numbers with a sum of at most 1)"
      )
    if self.next_sentence + self.whole_sentences + self.sentence_order > 1:
      raise UserError("next_sentence, sentence_order and whole_sentences are mutually exclusive")

  @property
  def unit(self) -> str:
    return "sentences" if self.whole_sentences else "document"

  @property
  def separated(self) -> bool:
    return self.whole_sentences

  @property
  def needs_others(self) -> bool:
    return self.next_sentence

  @property
  def labels_rows(self) -> bool:
    return self.next_sentence or self.sentence_order

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, 8)
    return Lengths(inputs - (3 if self.labels_rows else 2), inputs, inputs)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    check_mask(self, special)
    if special.cls is None or special.sep is None:
      raise UserError(
        f"{self.name} needs [CLS] and [SEP]; the vocabulary has none", try_="--gin.VOCABULARY=bert_uncased"
      )

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Masked:
    first, second, labels = rows, None, None
    if self.next_sentence:
      first, second, labels = _pairs(rows, draws, special)
    elif self.sentence_order:
      first, second, labels = _ordered_pairs(rows, draws, special)
    lengths = first.lengths + 2 if second is None else first.lengths + second.lengths + 3
    longest = int(lengths.max(initial=3))
    joined = join_segments(first, second, longest, special.cls, special.sep)
    text = Ragged(joined.tokens, joined.lengths)
    chosen = self.choose(text, draws, special)
    return Masked(
      inputs=Ragged(self.hide(text, chosen, draws, special), text.lengths),
      targets=text.tokens,
      weights=chosen,
      token_types=joined.token_types,
      labels=labels,
    )

  def choose(self, text: Ragged, draws: Draws, special: SpecialTokens) -> np.ndarray:
    """Returns a mask of the tokens to predict; as in BERT, their number is relative to all tokens, special ones too."""
    candidates = special.is_text(text)
    return exact_count(draws, candidates, self.counts(text, candidates))

  def counts(self, text: Ragged, candidates: np.ndarray) -> np.ndarray:
    counts = np.maximum(np.rint(text.lengths * self.noise_density), 1).astype(np.int64)
    if self.max_predictions is not None:
      counts = np.minimum(counts, self.max_predictions)
    return np.minimum(counts, np.count_nonzero(candidates, axis=1))

  def hide(self, text: Ragged, chosen: np.ndarray, draws: Draws, special: SpecialTokens) -> np.ndarray:
    """Returns the tokens [rows, width] with the chosen ones masked, replaced or kept."""
    counts = np.count_nonzero(chosen, axis=1)
    most = int(counts.max(initial=0))
    action = draws.uniform("mask, random or kept", most)
    drawn = special.replacement_ids[draws.integers("random tokens", most, len(special.replacement_ids))]
    used = within(counts, most)
    original = text.tokens[chosen]
    hidden = np.where(action < self.mask_share, np.int32(special.mask), drawn)[used]
    kept = action[used] >= self.mask_share + self.random_share
    out = text.tokens.astype(np.int32, copy=True)
    out[chosen] = np.where(kept, original, hidden)
    return out


@dataclasses.dataclass(frozen=True)
class SpanMaskedLM(MaskedLM):
  """SpanBERT (Joshi et al. 2019): predicts spans of complete words; a span is masked, replaced or kept as a unit.

  Span lengths in words follow a geometric distribution with p = 0.2, clipped at 10 (mean 3.8).

  variant: "paper" scatters spans over `noise_density` of a row's words. "original" is the authors' code: spans start at
  random words and may touch, and the last one is cut so that exactly `noise_density` of the tokens, rounded up, are
  predicted.
  """

  geometric: float = 0.2
  longest_span: int = 10
  variant: str = "paper"
  name: ClassVar[str] = "span_masked_lm"

  def __post_init__(self):
    super().__post_init__()
    check_fraction("geometric", self.geometric)
    if self.variant not in ("paper", "original"):
      raise UserError(f"unknown variant of {self.name}: {self.variant!r}", known="paper, original")

  def choose(self, text: Ragged, draws: Draws, special: SpecialTokens) -> np.ndarray:
    lengths = np.arange(self.longest_span + 1)
    odds = np.where(lengths > 0, self.geometric * (1 - self.geometric) ** (lengths - 1.0), 0.0)
    choose = spread_words if self.variant == "paper" else anchored_words
    return choose(text, draws, special, odds / odds.sum(), self.noise_density)

  def hide(self, text: Ragged, chosen: np.ndarray, draws: Draws, special: SpecialTokens) -> np.ndarray:
    starts = span_starts(chosen)
    span = np.cumsum(starts, axis=1) - 1
    most = int(span.max(initial=-1)) + 1
    action = np.take_along_axis(draws.uniform("mask, random or kept", max(most, 1)), np.maximum(span, 0), axis=1)
    width = text.tokens.shape[1]
    drawn = special.replacement_ids[draws.integers("random tokens", width, len(special.replacement_ids))]
    hidden = np.where(action < self.mask_share, np.int32(special.mask), drawn)
    kept = action >= self.mask_share + self.random_share
    return np.where(chosen & ~kept, hidden, text.tokens).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class NgramMaskedLM(MaskedLM):
  """ALBERT (Lan et al. 2019, section 4.1): predicts n-grams of complete words; p(n) is proportional to 1/n up to 3.

  Each token is masked, replaced or kept on its own.
  """

  longest_ngram: int = 3
  name: ClassVar[str] = "ngram_masked_lm"

  def __post_init__(self):
    super().__post_init__()
    if self.longest_ngram < 1:
      raise UserError(f"invalid longest_ngram: {self.longest_ngram} (expected at least 1)")

  def choose(self, text: Ragged, draws: Draws, special: SpecialTokens) -> np.ndarray:
    odds = np.array([0.0, *(1.0 / n for n in range(1, self.longest_ngram + 1))])
    return anchored_words(text, draws, special, odds / odds.sum(), self.noise_density, self.max_predictions)


def spread_words(
  text: Ragged, draws: Draws, special: SpecialTokens, odds: np.ndarray, noise_density: float
) -> np.ndarray:
  """Chooses spans of words, with lengths by `odds` (of 0, 1, 2, ...), scattered over a row; they do not touch."""
  candidates = special.is_text(text)
  words, counts = _words(text, candidates, special)
  budgets = np.maximum(np.rint(counts * noise_density), np.minimum(counts, 1)).astype(np.int64)
  spans, _ = sample_span_lengths(draws, budgets, odds)
  chosen_words = place_spans_randomly(draws, counts, max(int(counts.max(initial=0)), 1), spans)
  return np.take_along_axis(chosen_words, np.maximum(words, 0), axis=1) & candidates


def anchored_words(
  text: Ragged, draws: Draws, special: SpecialTokens, odds: np.ndarray, noise_density: float, at_most: int | None = None
) -> np.ndarray:
  """Chooses spans of words that start at the word of a random token, until a row's budget of tokens is used exactly.

  A token that is already chosen starts no span; the last span is cut.
  """
  candidates = special.is_text(text)
  words, _ = _words(text, candidates, special)
  sizes = np.count_nonzero(candidates, axis=1)
  budgets = np.ceil(sizes * noise_density - 1e-9).astype(np.int64)
  if at_most is not None:
    budgets = np.minimum(budgets, at_most)
  attempts = 4 * int(budgets.max(initial=0)) + 16  # rarely more than a few are needed
  anchors = draws.integers("anchors of spans", attempts, np.maximum(sizes, 1)[:, None])
  order = np.argsort(~candidates, axis=1, kind="stable")  # the n-th candidate of a row
  lengths = np.searchsorted(np.cumsum(odds), draws.uniform("span lengths", attempts), side="right")
  chosen = np.zeros_like(candidates)
  for anchor, length in zip(anchors.T, lengths.T, strict=True):
    left = budgets - np.count_nonzero(chosen, axis=1)
    if not np.any(left > 0):
      break
    place = np.take_along_axis(order, anchor[:, None], axis=1)
    word = np.take_along_axis(words, place, axis=1)
    starts = ~np.take_along_axis(chosen, place, axis=1) & (left > 0)[:, None]
    span = candidates & ~chosen & starts & (words >= word) & (words < word + length[:, None])
    chosen |= span & (np.cumsum(span, axis=1) <= left[:, None])
  return chosen


def _words(text: Ragged, candidates: np.ndarray, special: SpecialTokens) -> tuple[np.ndarray, np.ndarray]:
  """Returns the word number of each token [rows, width], and the number of words in each row."""
  starts = np.ones_like(candidates)
  if special.word_starts is not None:
    starts = special.word_starts.take(text.tokens, mode="clip")
  starts = starts.copy()
  starts[:, 1:] |= ~candidates[:, :-1]  # a word starts after a special token
  words = np.cumsum(starts & candidates, axis=1)
  return words - 1, words[:, -1] if words.shape[1] else np.zeros(len(words), np.int64)


def _pairs(rows: Rows, draws: Draws, special: SpecialTokens) -> tuple[Ragged, Ragged, np.ndarray]:
  """Splits rows in two at a sentence end; in half of the rows the second part is from another document.

  Label 1: the second part does not follow.
  """
  first, rest = split_texts(rows, draws, special)
  width, positions = rows.tokens.shape[1], np.arange(rows.tokens.shape[1])[None, :]
  labels = (draws.uniform("next or random", 1)[:, 0] < 0.5).astype(np.int32)
  if rows.others is None:
    raise ValueError("next-sentence prediction needs a row from another document for each row")
  # The rest of the row, or the same number of tokens from the start of the other one.
  other = np.zeros_like(rows.tokens)
  shared = min(width, rows.others.tokens.shape[1])
  other[:, :shared] = rows.others.tokens[:, :shared]
  lengths = np.where(labels == 1, np.minimum(np.maximum(rest.lengths, 1), rows.others.lengths), rest.lengths)
  second = np.where(labels[:, None] == 1, other, rest.tokens)
  return first, Ragged(np.where(positions < lengths[:, None], second, 0).astype(np.int32), lengths), labels


def _ordered_pairs(rows: Rows, draws: Draws, special: SpecialTokens) -> tuple[Ragged, Ragged, np.ndarray]:
  """Splits rows in two at a sentence end and swaps the parts in half of the rows: label 1."""
  first, second = split_texts(rows, draws, special)
  # A row of one token has no second part to swap.
  swapped = (draws.uniform("in order or swapped", 1)[:, 0] < 0.5) & (second.lengths > 0)
  choose = lambda one, two: Ragged(  # noqa: E731
    np.where(swapped[:, None], one.tokens, two.tokens), np.where(swapped, one.lengths, two.lengths)
  )
  return choose(second, first), choose(first, second), swapped.astype(np.int32)


def split_texts(rows: Ragged, draws: Draws, special: SpecialTokens) -> tuple[Ragged, Ragged]:
  """Splits rows at a random sentence end, or in the middle of a row without one."""
  width = rows.tokens.shape[1]
  last = rows.lengths[:, None] - 1
  positions = np.arange(width)[None, :]
  ends = np.isin(rows.tokens, np.asarray(special.sentence_ends, np.int32)) & (positions < last)
  counts = np.count_nonzero(ends, axis=1)
  pick = draws.integers("sentence that ends the first part", 1, np.maximum(counts, 1)[:, None])
  at_pick = ends & (np.cumsum(ends, axis=1) == pick + 1)
  split = np.where(counts > 0, at_pick.argmax(axis=1) + 1, np.maximum(rows.lengths // 2, 1))
  split = np.minimum(split, rows.lengths)
  rest = rows.lengths - split
  follow = np.take_along_axis(rows.tokens, np.minimum(positions + split[:, None], width - 1), axis=1)
  keep = lambda tokens, lengths: Ragged(np.where(positions < lengths[:, None], tokens, 0), lengths)  # noqa: E731
  return keep(rows.tokens, split), keep(follow, rest)
