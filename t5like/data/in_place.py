"""Reads the files of a token cache in place, for example on gs://, without copying them to this machine.

A file is read in blocks of 256 KiB, neighbors with one request. Each is compared with the checksums of the manifest,
and kept in memory until newer ones need its room. Blocks that will be needed are read ahead by threads. While a store
does not answer, readers wait.
"""

from __future__ import annotations

import functools
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from t5like.console import say
from t5like.data.shards import BLOCK, checksums
from t5like.errors import UserError
from t5like.files.remote_path import RemotePath

UNIT = 4 * BLOCK  # pools consist of pieces of this size
_BLOCKS_AT_ONCE = 8  # most with one request
_THREADS = 16
_ATTEMPTS = 3  # at blocks with a wrong checksum
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts
_PATIENCE = 1800.0  # seconds until a store that does not answer is given up
_REPORT_AFTER = 20.0


@functools.cache
def _threads() -> ThreadPoolExecutor:
  """The threads of all caches of this process, of which a mixture may have a hundred."""
  return ThreadPoolExecutor(_THREADS, "in_place")


class Units:
  """The blocks that were requested last, up to `limit` bytes, of all files of a cache.

  The oldest make room, whether they were used or not: the blocks of the next pool are read long before they are used.
  """

  def __init__(self, limit: int):
    self._most = max(limit // BLOCK, 2 * _THREADS * _BLOCKS_AT_ONCE)
    # With the place of a block among those that are read with one request.
    self._kept: OrderedDict[tuple[StreamedFile, int], tuple[Future, int]] = OrderedDict()
    self._lock = threading.Lock()

  def get(self, file: StreamedFile, first: int, last: int) -> list[np.ndarray]:
    """Returns blocks `first` to `last` - 1, each uint8, and waits for them if necessary."""
    found = self.read_ahead(file, first, last)
    return [read.result()[place * BLOCK : (place + 1) * BLOCK] for read, place in found]

  def read_ahead(self, file: StreamedFile, first: int, last: int) -> list[tuple[Future, int]]:
    """Starts to read those of the blocks that are not in memory; neighbors are read with one request."""
    with self._lock:
      missing = [block for block in range(first, last) if not self._has(file, block)]
      while missing:
        begin, end = missing[0], missing[0] + 1
        while end in missing and end - begin < _BLOCKS_AT_ONCE:
          end += 1
        read = _threads().submit(file.fetch, begin, end)
        self._kept.update({(file, block): (read, block - begin) for block in range(begin, end)})
        missing = missing[end - begin :]
      found = [self._kept[file, block] for block in range(first, last)]
      while len(self._kept) > self._most:
        self._kept.popitem(last=False)
      return found

  def _has(self, file: StreamedFile, block: int) -> bool:
    """Returns whether a block is in memory or being read; a failed one is tried again."""
    read, _ = self._kept.get((file, block), (None, 0))
    return read is not None and not (read.done() and read.exception())


class StreamedFile:
  """A file of a cache that stays where it is."""

  fully_checked = True  # what is read has been checked

  def __init__(self, path: Path | RemotePath, expected: Mapping[str, Any], repair: str, units: Units):
    self.path, self.bytes = path, expected["bytes"]
    self._sums, self._repair, self._units = checksums(expected), repair, units

  def check(self, start: int, stop: int) -> None:
    """Does nothing: all that is read is checked."""

  def read_ahead(self, start: int, stop: int) -> None:
    self._units.read_ahead(self, start // BLOCK, -(-stop // BLOCK))

  def slice(self, start: int, stop: int) -> np.ndarray:
    """Returns bytes `start` to `stop`, uint8."""
    first = start // BLOCK
    blocks = self._units.get(self, first, -(-stop // BLOCK))
    content = blocks[0] if len(blocks) == 1 else np.concatenate([np.zeros(0, np.uint8), *blocks])
    return content[start - first * BLOCK : stop - first * BLOCK]

  def read(self) -> bytes:
    """Returns the content, which is not kept."""
    last = -(-self.bytes // BLOCK)
    firsts = range(0, last, _BLOCKS_AT_ONCE)
    return b"".join(self.fetch(first, min(first + _BLOCKS_AT_ONCE, last)).tobytes() for first in firsts)

  def fetch(self, first: int, last: int) -> np.ndarray:
    """Reads blocks `first` to `last` - 1 from where they are; tries again as long as the store does not answer."""
    start, stop = first * BLOCK, min(last * BLOCK, self.bytes)
    began, reported, damaged, pause = time.monotonic(), False, 0, _FIRST_PAUSE
    while True:
      try:
        content = self._read(start, stop)
      except FileNotFoundError:
        raise UserError("a file of the token cache is missing", file=self.path, try_=self._repair) from None
      except OSError as error:
        waited = time.monotonic() - began
        if isinstance(error, PermissionError) or waited > _PATIENCE:
          why = error.strerror or error
          raise UserError("cannot read a file of the token cache", file=self.path, because=why) from None
        if waited > _REPORT_AFTER and not reported:
          say(f"waiting for {self.path}: {error.strerror or error}")
          reported = True
      else:
        bad = self._first_bad_block(content, start, stop)
        if bad is None:
          return np.frombuffer(content, np.uint8)
        damaged += 1
        if damaged == _ATTEMPTS:
          raise UserError(
            "a file of the token cache is corrupt (wrong checksum)",
            file=self.path,
            bytes=f"{bad * BLOCK:,} to {min((bad + 1) * BLOCK, self.bytes):,}",
            try_=self._repair,
          )
      time.sleep(pause)
      pause = min(2 * pause, _LONGEST_PAUSE)

  def _read(self, start: int, stop: int) -> bytes:
    if isinstance(self.path, RemotePath):
      return self.path.read_range(start, stop)
    with self.path.open("rb") as file:
      file.seek(start)
      return file.read(stop - start)

  def _first_bad_block(self, content: bytes, start: int, stop: int) -> int | None:
    first, view = start // BLOCK, memoryview(content)
    for number in range(first, -(-stop // BLOCK)):
      block = view[number * BLOCK - start : (number + 1) * BLOCK - start]
      if len(block) != min(BLOCK, stop - number * BLOCK) or zlib.crc32(block) != self._sums[number]:
        return number
    return None


class StreamedTokens:
  """The token ids of a streamed file. Slices are arrays."""

  def __init__(self, file: StreamedFile, dtype: np.dtype):
    self._file, self._dtype = file, dtype

  def __len__(self) -> int:
    return self._file.bytes // self._dtype.itemsize

  def __getitem__(self, at: slice) -> np.ndarray:
    start, stop, _ = at.indices(len(self))
    size = self._dtype.itemsize
    return self._file.slice(start * size, max(start, stop) * size).view(self._dtype)
