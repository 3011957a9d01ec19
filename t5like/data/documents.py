"""Where the documents of a corpus are. Only the indices of shards in use are in memory: all of C4's take 3 GB."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_KEPT = 1 << 29  # bytes of indices
_AT_ONCE = 64  # indices that are read before they are used
_THREADS = 16  # that read indices; most of the time they wait for the store


class Indices:
  """The indices of the shards that were used last."""

  def __init__(self, read: Callable[[int], np.ndarray]):
    """Takes a function that reads the index of a shard."""
    self._read, self._bytes = read, 0
    self._kept: OrderedDict[int, np.ndarray] = OrderedDict()
    self._lock = threading.Lock()

  def __getitem__(self, shard: int) -> np.ndarray:
    with self._lock:
      if (found := self._kept.get(shard)) is not None:
        self._kept.move_to_end(shard)
        return found
    index = self._read(shard)
    with self._lock:
      if shard not in self._kept:
        self._kept[shard] = index
        self._bytes += index.nbytes
      while self._bytes > _KEPT and len(self._kept) > 1:
        self._bytes -= self._kept.popitem(last=False)[1].nbytes
    return index

  def read_all(self, shards: Iterable[int]) -> None:
    """Reads those that are not in memory, several at a time."""
    with self._lock:
      missing = [shard for shard in shards if shard not in self._kept]
    if len(missing) > 1:
      with ThreadPoolExecutor(min(_THREADS, len(missing)), "index") as pool:
        list(pool.map(self.__getitem__, missing))


@dataclasses.dataclass(frozen=True)
class Documents:
  """The documents in the first `tokens` tokens of a corpus; the last one may be cut."""

  first: np.ndarray  # [shards + 1] number of each shard's first document
  first_token: np.ndarray  # [shards + 1] number of its first token
  indices: Indices
  separators: Indices  # of each shard, in a stream with one after each document
  tokens: int

  @classmethod
  def of(cls, first: np.ndarray, first_token: np.ndarray, indices: Indices) -> Documents:
    separators = Indices(lambda shard: _separators(indices[shard]))
    return cls(first, first_token, indices, separators, int(first_token[-1]))

  @property
  def shards(self) -> int:
    """The number of shards with text of these documents."""
    return max(int(np.searchsorted(self.first_token, self.tokens)), 1)

  @property
  def count(self) -> int:
    if self.tokens == self.first_token[-1]:
      return int(self.first[-1])
    last = self.shards - 1
    return int(self.first[last] + np.searchsorted(self.indices[last], self.tokens - self.first_token[last]))

  def first_of(self, tokens: int) -> Documents:
    """Returns the documents in a beginning of the corpus."""
    return dataclasses.replace(self, tokens=tokens)

  def all(self) -> np.ndarray:
    """Returns the token numbers at which all documents start, and the end: int64 [documents + 1]."""
    return self.starts(np.arange(self.count + 1))

  def starts(self, numbers: np.ndarray) -> np.ndarray:
    """Returns the token number at which each document starts; the end of the corpus for the number after the last."""
    starts = np.empty(len(numbers), np.int64)
    for shard, index, mine in self.by_shard(np.searchsorted(self.first, numbers, side="right") - 1):
      starts[mine] = index[numbers[mine] - self.first[shard]] + self.first_token[shard]
    return starts

  def ended(self, positions: np.ndarray) -> np.ndarray:
    """Returns the number of documents that end before positions of a stream with one separator after each document."""
    first = self.first + self.first_token
    ended = np.empty(len(positions), np.int64)
    for shard, index, mine in self.by_shard(np.searchsorted(first, positions, side="right") - 1):
      separators = self.separators[shard] if index is self.indices[shard] else _separators(index)
      ended[mine] = self.first[shard] + np.searchsorted(separators, positions[mine] - first[shard])
    return ended

  def by_shard(self, shards: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields each of the shards once: its number, its index, and the places that have it."""
    shards = np.minimum(shards, len(self.first) - 2)  # the end belongs to the last
    if len(shards) and (shards == shards[0]).all():
      yield int(shards[0]), self.index(int(shards[0])), np.arange(len(shards))
      return
    places = np.argsort(shards, kind="stable")
    wanted, begins = np.unique(shards[places], return_index=True)
    mine = np.split(places, begins[1:])
    for number, shard in enumerate(wanted.tolist()):
      if number % _AT_ONCE == 0:
        self.indices.read_all(wanted[number : number + _AT_ONCE].tolist())
      yield shard, self.index(shard), mine[number]

  def index(self, shard: int) -> np.ndarray:
    """Returns where the documents of a shard start, and its end, relative to the shard: [documents + 1]."""
    index, most = self.indices[shard], self.tokens - self.first_token[shard]
    return index if index[-1] <= most else np.minimum(index, most)


def _separators(index: np.ndarray) -> np.ndarray:
  """Returns where the separators after a shard's documents are."""
  return index[1:] + np.arange(len(index) - 1)
