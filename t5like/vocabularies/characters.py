"""Words as characters, with the ids of bilm-tf: UTF-8 bytes between marks of a word's begin and end, all plus 1.

0 is for words that are padding. A sentence's begin and end are words of their own, `<S>` and `</S>`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SENTENCE_BEGIN, SENTENCE_END = "<S>", "</S>"
PER_WORD = 50
_MARKS = {SENTENCE_BEGIN: 256, SENTENCE_END: 257}
_WORD_BEGIN, _WORD_END, _FILL = 258, 259, 260


def spell(word: str, length: int = PER_WORD) -> np.ndarray:
  """Returns the ids [length] of a word; bytes that do not fit between its marks are dropped."""
  ids = np.full(length, _FILL, np.int32)
  middle = [_MARKS[word]] if word in _MARKS else list(word.encode("utf-8", "ignore")[: length - 2])
  ids[: len(middle) + 2] = [_WORD_BEGIN, *middle, _WORD_END]
  return ids + 1


def spell_words(words: Sequence[str], length: int = PER_WORD) -> np.ndarray:
  """Returns the ids [words, length]."""
  return np.stack([spell(word, length) for word in words]) if words else np.zeros((0, length), np.int32)


def spell_sentences(sentences: Sequence[Sequence[str]], length: int = PER_WORD) -> tuple[np.ndarray, np.ndarray]:
  """Returns the characters [sentences, words, length] of sentences between their marks, and their lengths."""
  marked = [[SENTENCE_BEGIN, *words, SENTENCE_END] for words in sentences]
  lengths = np.array([len(words) for words in marked], np.int32)
  ids = np.zeros((len(marked), int(lengths.max(initial=0)), length), np.int32)
  for row, words in zip(ids, marked, strict=True):
    row[: len(words)] = spell_words(words, length)
  return ids, lengths
