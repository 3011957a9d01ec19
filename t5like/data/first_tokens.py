"""A corpus truncated to its first tokens, to study repeated data (T5 paper, section 3.4.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np

from t5like.data.cache import TokenCache
from t5like.data.documents import Documents
from t5like.errors import UserError


@dataclasses.dataclass(frozen=True)
class FirstTokens:
  """The first `tokens` tokens of a token cache as a corpus; the last document is truncated."""

  cache: TokenCache
  tokens: int

  def __post_init__(self):
    if not self.cache.is_corpus:
      raise UserError("UNIQUE_TOKENS needs a corpus, not labeled examples", cache=self.cache.folder)
    if self.tokens > self.cache.tokens:
      raise UserError(
        f"invalid UNIQUE_TOKENS: {self.tokens:,} (the corpus has {self.cache.tokens:,} tokens)",
        cache=self.cache.folder,
        try_="--gin.UNIQUE_TOKENS=None to use all of it",
      )

  @property
  def folder(self) -> Path:
    return self.cache.folder

  @property
  def pool(self) -> int:
    return self.cache.pool

  def documents(self) -> Documents:
    """Returns where the documents start and end; the last one may be cut."""
    return self.cache.documents().first_of(self.tokens)

  def read_ahead(self, part: Hashable, spans: Callable[[], tuple[np.ndarray, np.ndarray]]) -> None:
    self.cache.read_ahead(part, spans)

  def stream_rows(self, starts: np.ndarray, length: int) -> np.ndarray:
    """Returns the tokens from each of `starts`: [rows] to int32 [rows, length]."""
    starts = np.asarray(starts, np.int64)
    if len(starts) and starts.max() + length > self.tokens:
      raise IndexError(f"rows of {length} tokens from {starts.max()} of {self.tokens}")
    return self.cache.stream_rows(starts, length)
