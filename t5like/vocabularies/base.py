"""The base class of vocabularies."""

from __future__ import annotations

import abc
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

SENTENCE_ENDS = (".", "!", "?")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Vocabulary(abc.ABC):
  """Encodes text to ids, without end-of-sequence (which the loader appends), and decodes ids.

  Special ids that a vocabulary does not have are None. Batches are padded with 0 regardless of `pad_id`:
  GPT-2 has no padding token and RoBERTa's is 1, so if 0 is a real token, only loss weights and segment
  ids identify padding.
  """

  path: Path | None = None  # the file it was loaded from
  extra_ids: int = 0  # sentinels added to those in the file
  fingerprint: str  # equal if all ids are equal
  settings: Mapping[str, Any] = MappingProxyType({})  # of Hugging Face's tokenizer_config.json, besides names

  pad_id: int | None
  eos_id: int
  unk_id: int | None
  bos_id: int | None = None
  cls_id: int | None = None
  sep_id: int | None = None
  mask_id: int | None = None
  has_whole_words: bool = False  # no word is split, so that two vocabularies share words
  opens_texts: bool = False  # Hugging Face's tokenizer puts `bos_id` before every text (Llama)
  cls_last: bool = False  # `cls_id` is the last token of a row (XLNet)
  sentinel_ids: tuple[int, ...] = ()  # in order of use: the first span gets the first

  @property
  @abc.abstractmethod
  def vocab_size(self) -> int:
    """The number of ids, sentinels included; a model's embedding may be padded beyond it."""

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]: ...

  @abc.abstractmethod
  def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
    """Encodes every text; the number of threads does not affect the result."""

  @abc.abstractmethod
  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns ids, and for each its character span in `text`, without surrounding white space."""

  @abc.abstractmethod
  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text up to the first end-of-sequence."""

  @abc.abstractmethod
  def piece(self, token: int) -> str:
    """Returns a token's piece, word marks included."""

  def original_files(self) -> dict[str, bytes]:
    """Returns the files it was loaded from, by their Hugging Face names."""
    return {}

  @property
  @abc.abstractmethod
  def special_ids(self) -> frozenset[int]:
    """Ids that objectives must not hide or sample: padding, ends, marks and sentinels, but not `unk_id`."""

  @property
  def language_ids(self) -> frozenset[int]:
    """The codes of languages; most vocabularies have none."""
    return frozenset()

  @property
  @abc.abstractmethod
  def word_starts(self) -> np.ndarray:
    """Whether each token starts a word; other tokens continue the word before them: bool [vocab_size]."""

  @cached_property
  def sentence_end_ids(self) -> frozenset[int]:
    """Tokens whose last character ends a sentence."""
    return frozenset(
      token
      for token in range(self.vocab_size)
      if token not in self.special_ids and self.piece(token).endswith(SENTENCE_ENDS)
    )

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Vocabulary) and self.fingerprint == other.fingerprint

  def __hash__(self) -> int:
    return hash(self.fingerprint)


def fingerprint_of(*parts: object) -> str:
  """Returns a short hash of file contents and settings."""
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part if isinstance(part, bytes) else str(part).encode())
  return digest.hexdigest()[:16]


def well_formed(text: str) -> str:
  """Replaces lone surrogates, which JSON allows but UTF-8 cannot encode, with U+FFFD."""
  return _SURROGATES.sub("\ufffd", text)


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
  """Strips white space from the ends of a span; one of white space only becomes empty, at its end."""
  while start < end and text[start].isspace():
    start += 1
  while start < end and text[end - 1].isspace():
    end -= 1
  return start, end
