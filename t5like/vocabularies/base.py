"""What every vocabulary is: text to ids and back, and which ids mean something special."""

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
  """Text to ids and back, without TensorFlow; ids have no end-of-sequence, which the loader adds.

  An id that a vocabulary has not is None. Batches are padded with 0 whatever `pad_id` says: GPT-2
  has no padding token and RoBERTa's is 1, so where 0 is a real token only loss weights and segment
  ids tell padding apart.
  """

  path: Path | None = None  # the file it was read from
  extra_ids: int = 0  # sentinels added to what the file holds
  fingerprint: str  # equal where all ids are
  settings: Mapping[str, Any] = MappingProxyType({})  # what Hugging Face's tokenizer_config.json says besides names

  pad_id: int | None
  eos_id: int
  unk_id: int | None
  bos_id: int | None = None
  cls_id: int | None = None
  sep_id: int | None = None
  mask_id: int | None = None
  sentinel_ids: tuple[int, ...] = ()  # in the order of use: the first span gets the first

  @property
  @abc.abstractmethod
  def vocab_size(self) -> int:
    """Ids in all, sentinels included; a model's embedding may be padded beyond it."""

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]: ...

  @abc.abstractmethod
  def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
    """`encode` of every text; the number of threads changes the speed and nothing else."""

  @abc.abstractmethod
  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids, and for each the characters of `text` it stands for, without white space around them."""

  @abc.abstractmethod
  def decode(self, ids: Sequence[int]) -> str:
    """Text up to the first end-of-sequence."""

  @abc.abstractmethod
  def piece(self, token: int) -> str:
    """One token as the vocabulary writes it, word marks included."""

  def original_files(self) -> dict[str, bytes]:
    """The files it was read from, under the names that Hugging Face gives them."""
    return {}

  @property
  @abc.abstractmethod
  def special_ids(self) -> frozenset[int]:
    """Ids that no objective may hide or draw at random: padding, ends, marks, sentinels; not `unk_id`."""

  @property
  @abc.abstractmethod
  def word_starts(self) -> np.ndarray:
    """[vocab_size] bool: the token begins a new word, so tokens without it belong to the word before them."""

  @cached_property
  def sentence_end_ids(self) -> frozenset[int]:
    """Tokens whose last character closes a sentence."""
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
  """A short hash of file contents and settings."""
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part if isinstance(part, bytes) else str(part).encode())
  return digest.hexdigest()[:16]


def well_formed(text: str) -> str:
  """The text with half surrogate pairs, which JSON lets through and UTF-8 has no bytes for, as U+FFFD."""
  return _SURROGATES.sub("\ufffd", text)


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
  """The span without white space at its ends; empty at its end where it is nothing else."""
  while start < end and text[start].isspace():
    start += 1
  while start < end and text[end - 1].isspace():
    end -= 1
  return start, end
