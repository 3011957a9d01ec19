"""Words of any kind, for a model that reads their characters (ELMo): no list of words is needed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from t5like.vocabularies.base import Vocabulary, fingerprint_of, well_formed
from t5like.vocabularies.characters import SENTENCE_BEGIN, SENTENCE_END, spell

_PADDING = "<PAD>"
_WORD = re.compile(r"\S+")


class SpelledWords(Vocabulary):
  """Text split at white space. A word gets the next id when it is first seen, so ids mean nothing outside of a process:
  `spell` returns the characters that a model reads.
  """

  fingerprint = fingerprint_of("spelled")
  pad_id, bos_id, eos_id = 0, 1, 2
  unk_id = None
  has_whole_words = True
  opens_texts = True
  special_ids = frozenset((pad_id, bos_id, eos_id))

  def __init__(self) -> None:
    self._words = [_PADDING, SENTENCE_BEGIN, SENTENCE_END]
    self._ids = {word: token for token, word in enumerate(self._words)}

  @property
  def vocab_size(self) -> int:
    return len(self._words)

  def encode(self, text: str) -> list[int]:
    return self.encode_with_offsets(text)[0]

  def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
    return [self.encode(text) for text in texts]

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    found = list(_WORD.finditer(well_formed(text)))
    return [self._id(match[0]) for match in found], [match.span() for match in found]

  def _id(self, word: str) -> int:
    if word not in self._ids:
      self._ids[word] = len(self._words)
      self._words.append(word)
    return self._ids[word]

  def decode(self, ids: Sequence[int]) -> str:
    tokens = list(map(int, ids))
    tokens = tokens[: tokens.index(self.eos_id)] if self.eos_id in tokens else tokens
    return " ".join(self.piece(token) for token in tokens if token not in self.special_ids)

  def piece(self, token: int) -> str:
    return self._words[token] if 0 <= token < len(self._words) else ""

  def spell(self, ids: np.ndarray, length: int) -> np.ndarray:
    """Returns the characters [..., length] of words: see vocabularies.characters; 0 for padding."""
    known, places = np.unique(ids, return_inverse=True)
    rows = [np.zeros(length, np.int32) if token == self.pad_id else spell(self.piece(token), length) for token in known]
    return np.stack(rows)[places.reshape(ids.shape)]

  @property
  def word_starts(self) -> np.ndarray:
    return np.ones(self.vocab_size, bool)
