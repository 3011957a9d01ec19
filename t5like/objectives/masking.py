"""Masked language modeling for encoders: BERT, RoBERTa, SpanBERT, and ELECTRA's generator."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from t5like.errors import UserError
from t5like.objectives.base import Lengths, Masked, Objective, Rows, SpecialTokens, at_least, check_mask, check_share
from t5like.objectives.corruption import span_starts
from t5like.objectives.noise import drawn_span_lengths, exact_count, scattered_spans
from t5like.objectives.ragged import Ragged, within
from t5like.objectives.randomness import Draws
from t5like.objectives.segments import join_segments


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
  """A share of the tokens is predicted in place; most of them are hidden from the encoder.

  Of the predicted tokens `mask_share` become [MASK], `random_share` a random token, the rest stays
  (Devlin et al. 2018: 80/10/10). The choice is drawn anew every epoch, as RoBERTa does, where BERT
  made ten copies of its corpus. The defaults are BERT's; its 128-token phase predicts at most 20.

  next_sentence: half of the rows go on with text of another document, and the model says which.
  whole_sentences: rows are whole sentences, running over the ends of documents, without pairs
  (RoBERTa's full-sentences). Otherwise a row is a piece of one document.
  """

  noise_density: float = 0.15
  mask_share: float = 0.8
  random_share: float = 0.1
  max_predictions: int | None = None
  next_sentence: bool = False
  whole_sentences: bool = False
  name: ClassVar[str] = "masked_lm"
  makes: ClassVar[str] = "masked"

  def __post_init__(self):
    check_share("noise_density", self.noise_density)
    if not (0 <= self.mask_share and 0 <= self.random_share and self.mask_share + self.random_share <= 1 + 1e-9):
      raise UserError(f"shares of {self.mask_share} masked and {self.random_share} random tokens exceed all of them")
    if self.next_sentence and self.whole_sentences:
      raise UserError("next_sentence compares two texts, whole_sentences has one: choose one of them")

  @property
  def unit(self) -> str:
    return "sentences" if self.whole_sentences else "document"

  @property
  def separated(self) -> bool:
    return self.whole_sentences

  @property
  def needs_others(self) -> bool:
    return self.next_sentence

  def lengths(self, inputs: int) -> Lengths:
    at_least(self, inputs, 8)
    return Lengths(inputs - (3 if self.next_sentence else 2), inputs, inputs)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    check_mask(self, special)
    if special.cls is None or special.sep is None:
      raise UserError(
        f"{self.name} needs [CLS] and [SEP], the vocabulary has none", try_="--gin.VOCABULARY=bert_uncased"
      )

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Masked:
    first, second, labels = rows, None, None
    if self.next_sentence:
      first, second, labels = _pairs(rows, draws, special)
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
    """Exactly the nearest whole number to the share of all tokens, special ones counted, as BERT counted."""
    candidates = special.is_text(text)
    return exact_count(draws, candidates, self.counts(text, candidates))

  def counts(self, text: Ragged, candidates: np.ndarray) -> np.ndarray:
    counts = np.maximum(np.rint(text.lengths * self.noise_density), 1).astype(np.int64)
    if self.max_predictions is not None:
      counts = np.minimum(counts, self.max_predictions)
    return np.minimum(counts, np.count_nonzero(candidates, axis=1))

  def hide(self, text: Ragged, chosen: np.ndarray, draws: Draws, special: SpecialTokens) -> np.ndarray:
    """[rows, width] with chosen tokens masked, replaced or left."""
    counts = np.count_nonzero(chosen, axis=1)
    most = int(counts.max(initial=0))
    fate = draws.uniform("mask, random or kept", most)
    drawn = special.drawable[draws.integers("random tokens", most, len(special.drawable))]
    used = within(counts, most)
    original = text.tokens[chosen]
    hidden = np.where(fate < self.mask_share, np.int32(special.mask), drawn)[used]
    kept = fate[used] >= self.mask_share + self.random_share
    out = text.tokens.astype(np.int32, copy=True)
    out[chosen] = np.where(kept, original, hidden)
    return out


@dataclasses.dataclass(frozen=True)
class SpanMaskedLM(MaskedLM):
  """SpanBERT (Joshi et al. 2019): spans of whole words are predicted, a span shares one fate.

  Span lengths in words come from a geometric distribution with p = 0.2, cut at 10: 3.8 on average.
  """

  geometric: float = 0.2
  longest_span: int = 10
  name: ClassVar[str] = "span_masked_lm"

  def __post_init__(self):
    super().__post_init__()
    check_share("geometric", self.geometric)

  def choose(self, text: Ragged, draws: Draws, special: SpecialTokens) -> np.ndarray:
    candidates = special.is_text(text)
    words, counts = _words(text, candidates, special)
    lengths = np.arange(self.longest_span + 1)
    odds = np.where(lengths > 0, self.geometric * (1 - self.geometric) ** (lengths - 1.0), 0.0)
    budgets = np.maximum(np.rint(counts * self.noise_density), np.minimum(counts, 1)).astype(np.int64)
    spans, _ = drawn_span_lengths(draws, budgets, odds / odds.sum())
    chosen_words = scattered_spans(draws, counts, max(int(counts.max(initial=0)), 1), spans)
    return np.take_along_axis(chosen_words, np.maximum(words, 0), axis=1) & candidates

  def hide(self, text: Ragged, chosen: np.ndarray, draws: Draws, special: SpecialTokens) -> np.ndarray:
    starts = span_starts(chosen)
    span = np.cumsum(starts, axis=1) - 1
    most = int(span.max(initial=-1)) + 1
    fate = np.take_along_axis(draws.uniform("mask, random or kept", max(most, 1)), np.maximum(span, 0), axis=1)
    width = text.tokens.shape[1]
    drawn = special.drawable[draws.integers("random tokens", width, len(special.drawable))]
    hidden = np.where(fate < self.mask_share, np.int32(special.mask), drawn)
    kept = fate >= self.mask_share + self.random_share
    return np.where(chosen & ~kept, hidden, text.tokens).astype(np.int32)


def _words(text: Ragged, candidates: np.ndarray, special: SpecialTokens) -> tuple[np.ndarray, np.ndarray]:
  """The number of its word for each token [rows, width], and words of each row."""
  starts = np.ones_like(candidates)
  if special.word_starts is not None:
    starts = special.word_starts.take(text.tokens, mode="clip")
  starts = starts.copy()
  starts[:, 1:] |= ~candidates[:, :-1]  # behind a special token a word begins
  words = np.cumsum(starts & candidates, axis=1)
  return words - 1, words[:, -1] if words.shape[1] else np.zeros(len(words), np.int64)


def _pairs(rows: Rows, draws: Draws, special: SpecialTokens) -> tuple[Ragged, Ragged, np.ndarray]:
  """Two parts of a text, split where a sentence ends; for half of the rows the second is of another document.

  Without a sentence end inside, a row is split in the middle. Label 1: the second part does not follow.
  """
  width = rows.tokens.shape[1]
  last = rows.lengths[:, None] - 1
  places = np.arange(width)[None, :]
  ends = np.isin(rows.tokens, np.asarray(special.sentence_ends, np.int32)) & (places < last)
  counts = np.count_nonzero(ends, axis=1)
  pick = draws.integers("sentence that ends the first part", 1, np.maximum(counts, 1)[:, None])
  at_pick = ends & (np.cumsum(ends, axis=1) == pick + 1)
  split = np.where(counts > 0, at_pick.argmax(axis=1) + 1, np.maximum(rows.lengths // 2, 1))
  split = np.minimum(split, rows.lengths)
  labels = (draws.uniform("next or random", 1)[:, 0] < 0.5).astype(np.int32)
  if rows.others is None:
    raise ValueError("next-sentence prediction needs a row of another document for each row")
  first = Ragged(np.where(places < split[:, None], rows.tokens, 0), split)
  rest = rows.lengths - split
  # The rest of a row, or as many tokens from the beginning of the other one.
  follow = np.take_along_axis(rows.tokens, np.minimum(places + split[:, None], width - 1), axis=1)
  other = np.zeros_like(rows.tokens)
  shared = min(width, rows.others.tokens.shape[1])
  other[:, :shared] = rows.others.tokens[:, :shared]
  lengths = np.where(labels == 1, np.minimum(np.maximum(rest, 1), rows.others.lengths), rest)
  second = np.where(labels[:, None] == 1, other, follow)
  return first, Ragged(np.where(places < lengths[:, None], second, 0).astype(np.int32), lengths), labels
