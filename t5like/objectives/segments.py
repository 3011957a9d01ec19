"""Joins texts into a row, [CLS] first [SEP] second [SEP] or another family's form, and the pieces of tagged words."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from t5like.objectives.base import SpecialTokens
from t5like.objectives.ragged import Ragged, numbered, within

# The texts of a row, by number: an encoder joins the first two, sentence embeddings keep all apart.
TEXT_FIELDS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


class Segments(NamedTuple):
  tokens: np.ndarray  # [rows, length] int32, padded with 0
  token_types: np.ndarray  # [rows, length] int32: 1 on the second text and its [SEP], 2 on XLNet's <cls>
  lengths: np.ndarray  # [rows] int64


@dataclasses.dataclass(frozen=True)
class PairForm:
  """How a family joins texts into a row.

  BERT     [CLS] first [SEP] second [SEP], token types 0 and 1
  RoBERTa  <s> first </s></s> second </s>
  XLNet    first <sep> second <sep> <cls>, token types 0, 1 and 2
  T5, GPT  first </s> second </s>, with the vocabulary's end-of-sequence; Llama: after <s>
  imported decoders, as their tokenizers do: first second; Llama: <s> first <s> second
  """

  cls: int | None
  sep: int
  separators: int = 1  # between the texts
  typed: bool = True  # token types 1 for the second text
  cls_last: bool = False
  closed: bool = True  # `sep` follows the last text

  @classmethod
  def of(cls, special: SpecialTokens) -> PairForm:
    """Returns the form of a vocabulary."""
    if special.cls is None or special.sep is None:
      opening = special.bos if special.opens_texts else None
      if special.closes_rows:
        return cls(opening, special.eos, typed=False)
      between = 0 if opening is None else 1
      return cls(opening, opening if between else special.eos, between, typed=False, closed=False)
    if special.bos == special.cls:
      return cls(special.cls, special.sep, separators=2, typed=False)
    return cls(special.cls, special.sep, cls_last=special.cls_last)

  @property
  def head(self) -> list[int]:
    """The tokens before the first text."""
    return [] if self.cls is None or self.cls_last else [self.cls]

  @property
  def tail(self) -> list[int]:
    """The tokens after the last text."""
    return [self.sep, self.cls] if self.cls_last else [self.sep] * self.closed

  @property
  def around(self) -> int:
    """The number of tokens around a single text."""
    return len(self.head) + len(self.tail)

  def join(self, first: Ragged, second: Ragged | None, length: int) -> Segments:
    if not self.closed:
      tokens, types, lengths = join_segments(first, second, length + 1, self.cls, self.sep, self.separators, self.typed)
      tokens[np.arange(len(tokens)), lengths - 1] = 0
      return Segments(tokens[:, :-1], types[:, :-1], lengths - 1)
    if not self.cls_last:
      return join_segments(first, second, length, self.cls, self.sep, self.separators, self.typed)
    tokens, types, lengths = join_segments(first, second, length - 1, None, self.sep, self.separators, self.typed)
    tokens, types = (np.pad(x, ((0, 0), (0, 1))) for x in (tokens, types))
    rows = np.arange(len(tokens))
    tokens[rows, lengths], types[rows, lengths] = self.cls, 2
    return Segments(tokens, types, lengths + 1)


def join_segments(
  first: Ragged, second: Ragged | None, length: int, cls: int | None, sep: int, separators: int = 1, typed: bool = True
) -> Segments:
  """Joins texts into rows of `length`, truncating the longer text first, then both.

  Like Hugging Face's `truncation="longest_first"`: if both are truncated, an odd token goes to the text
  that was longer, or to the second. (Google's BERT gives it to the first.)
  """
  start = int(cls is not None)
  if second is None:
    second = Ragged(np.zeros((len(first.tokens), 0), np.int32), np.zeros(len(first.tokens), np.int64))
    room, separators, second_sep = length - start - 1, 1, 0
  else:
    room, second_sep = length - start - separators - 1, 1
  if room < 0:
    raise ValueError(f"invalid length: {length} (too short for [CLS] and [SEP])")
  kept_first, kept_second = _longest_first(first.lengths, second.lengths, room)
  lengths = kept_first + kept_second + start + separators + second_sep
  tokens = np.zeros((len(lengths), length), np.int32)
  positions = np.arange(length)[None, :]
  begin_second = kept_first[:, None] + start + separators
  width = min(first.tokens.shape[1], room)
  tokens[:, start : start + width] = first.tokens[:, :width]
  if np.any(kept_first < width):
    tokens[positions >= kept_first[:, None] + start] = 0
  if second.tokens.shape[1]:
    inside = (positions >= begin_second) & (positions < begin_second + kept_second[:, None])
    tokens[inside] = second.tokens[within(kept_second, second.tokens.shape[1])]
  if cls is not None:
    tokens[:, 0] = cls
  rows = np.arange(len(tokens))
  for number in range(separators):
    tokens[rows, kept_first + start + number] = sep
  if second_sep:
    tokens[rows, lengths - 1] = sep
  token_types = (positions >= begin_second) & (positions < lengths[:, None]) & typed
  return Segments(tokens, token_types.astype(np.int32), lengths)


def _longest_first(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the lengths of both after truncation."""
  shorter = np.minimum(np.minimum(first, second), room // 2)  # not truncated, or both are truncated to half
  longer = np.minimum(np.maximum(first, second), room - shorter)
  first_is_longer = first > second
  return np.where(first_is_longer, longer, shorter), np.where(first_is_longer, shorter, longer)


class TaggedRows(NamedTuple):
  tokens: np.ndarray  # [rows, length] int32, padded with 0
  targets: np.ndarray  # [rows, length] int32: the tag of the word that starts at a token, 0 elsewhere
  word_numbers: np.ndarray  # [rows, length] int32: the index of that word, -1 elsewhere
  lengths: np.ndarray  # [rows] int64


def join_words(pieces: Ragged, word_lengths: Ragged, tags: Ragged, length: int, form: PairForm) -> TaggedRows:
  """Joins the pieces of words into rows of `length`: [CLS] pieces [SEP], truncated at the end.

  `pieces` are those of all words of a row, `word_lengths` the number of pieces of each word, which may be 0.
  """
  start = len(form.head)
  room = length - form.around
  if room < 0:
    raise ValueError(f"invalid length: {length} (too short for [CLS] and [SEP])")
  rows = len(pieces.lengths)
  kept = np.minimum(pieces.lengths, room)
  tokens = np.zeros((rows, length), np.int32)
  width = min(pieces.tokens.shape[1], room)
  tokens[:, start : start + width] = np.where(within(kept, width), pieces.tokens[:, :width], 0)
  tokens[:, :start] = np.array(form.head, np.int32)  # T5 and GPT have none
  for number, token in enumerate(form.tail):
    tokens[np.arange(rows), start + kept + number] = token
  targets, word_numbers = np.zeros((rows, length), np.int32), np.full((rows, length), -1, np.int32)
  before = np.cumsum(word_lengths.tokens, axis=1) - word_lengths.tokens  # [rows, words]: pieces before each word
  first = word_lengths.valid & (word_lengths.tokens > 0) & (before < kept[:, None])
  row = np.nonzero(first)[0]
  targets[row, start + before[first]] = tags.tokens[first]
  word_numbers[row, start + before[first]] = numbered(word_lengths.lengths)[first[word_lengths.valid]]
  return TaggedRows(tokens, targets, word_numbers, form.around + kept)
