"""The beginning of a corpus as if it were all of it: what repeated data does to training (T5 paper, section 3.4.2)."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path

import numpy as np

from t5like.data.cache import TokenCache
from t5like.errors import UserError


@dataclasses.dataclass(frozen=True)
class FirstTokens:
  """A corpus of the first `tokens` tokens of a token cache; the document they end in is cut there."""

  cache: TokenCache
  tokens: int

  def __post_init__(self):
    if not self.cache.is_corpus:
      raise UserError("only a corpus has first tokens, not labeled examples", cache=self.cache.folder)
    if self.tokens > self.cache.tokens:
      raise UserError(
        f"the corpus has {self.cache.tokens:,} tokens: its first {self.tokens:,} are more than all",
        cache=self.cache.folder,
        try_="--gin.UNIQUE_TOKENS=None, for all of it",
      )

  @property
  def folder(self) -> Path:
    return self.cache.folder

  @cached_property
  def _documents(self) -> np.ndarray:
    starts = self.cache.documents()
    return np.append(starts[: np.searchsorted(starts, self.tokens)], self.tokens)

  def documents(self) -> np.ndarray:
    """[documents + 1] int64: where the documents begin, and the end of the last."""
    return self._documents

  def stream_rows(self, starts: np.ndarray, length: int) -> np.ndarray:
    """[rows] to int32 [rows, length]: the tokens from each of `starts`."""
    starts = np.asarray(starts, np.int64)
    if len(starts) and starts.max() + length > self.tokens:
      raise IndexError(f"rows of {length} tokens from {starts.max()} of {self.tokens}")
    return self.cache.stream_rows(starts, length)
