"""Windows of running text, for models that carry their state: row b of step s is the s-th window of stream b."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from t5like.data.cache import TokenCache
from t5like.data.document_plans import TokenStream
from t5like.data.first_tokens import FirstTokens
from t5like.data.layouts import Batch, causal
from t5like.errors import UserError
from t5like.objectives import Lengths, Ragged, SpecialTokens
from t5like.objectives.randomness import combine

_TURN = 0x7C12  # the random stream of the start of an epoch


@dataclasses.dataclass(frozen=True)
class WindowRows:
  """A corpus, documents end to end, in `streams` equal parts that are read side by side, a window in every step.

  Rows are numbered as in any source: number n is row n % streams of step n // streams. Every epoch starts at another
  token of the corpus, drawn from the seed, and reads in a circle. `decoder_continues` is 0 for the first window of an
  epoch, 1 where a window follows that of the step before.
  """

  cache: TokenCache | FirstTokens
  lengths: Lengths
  special: SpecialTokens
  seed: int
  streams: int

  def __post_init__(self):
    if self.cache.pool:
      raise UserError(
        "a model that carries its state reads all parts of a corpus at once: its token cache must be on this machine",
        cache=self.cache.folder,
        try_="a larger CACHE_LOCAL_GB",
      )
    if self.windows < 1:
      raise UserError(
        f"the corpus of {self._text.length:,} tokens is too short for {self.streams} streams of "
        f"{self.lengths.targets} tokens",
        cache=self.cache.folder,
        try_="a smaller BATCH_SIZE or LENGTHS['inputs']",
      )

  @cached_property
  def _text(self) -> TokenStream:
    return TokenStream.of(self.cache, self.special.eos)

  @property
  def windows(self) -> int:
    """The windows of a stream; the last token of each is the first of the next."""
    return (self._text.length // self.streams - 1) // self.lengths.targets

  @property
  def rows_per_epoch(self) -> int:
    return self.windows * self.streams

  def rows(self, numbers: np.ndarray) -> Batch:
    steps, streams = np.divmod(numbers, self.streams)
    epochs, windows = np.divmod(steps, self.windows)
    length, size = self._text.length, self.lengths.targets + 1
    keys = combine(self.seed, epochs, _TURN)
    turn = (keys % np.uint64(length)).astype(np.int64)
    begin = (turn + streams * (length // self.streams) + windows * self.lengths.targets) % length
    tokens = self._text.read(begin, size)
    # The circle: what is past the end is the beginning.
    start, left = self._text.read(np.zeros(1, np.int64), size)[0], length - begin[:, None]
    column = np.arange(size)[None, :]
    tokens = np.where(column < left, tokens, start[np.maximum(column - left, 0)]).astype(np.int32)
    return causal(Ragged.full(tokens), self.lengths) | {"decoder_continues": (windows > 0).astype(np.int32)}
