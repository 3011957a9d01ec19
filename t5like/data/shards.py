"""The files of a token cache: the ids of all examples end to end, and an index of where each starts.

A shard `shard-00000` is three files:

    .tokens   ids of every feature of every example, uint16 or uint32, little-endian
    .index    int64 [examples * features + 1], offsets into .tokens: feature f of example e is
              tokens[index[e * features + f] : index[e * features + f + 1]]
    .fields   JSON lines with the raw fields, for metrics and people (only for labeled examples)

The cache's manifest holds their sizes and the CRC-32 of each block of 256 KiB, so that damage is detected
as blocks are read, without reading everything first.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.errors import UserError
from t5like.files import storage

BLOCK = 1 << 18


def repair_command(rebuild_command: str, shard: str) -> str:
  """Returns the command that rebuilds one shard, given the one that rebuilds the cache; '' if that is unknown."""
  return f"{rebuild_command.removesuffix(' --force')} --repair={shard}" if rebuild_command else ""


def token_dtype(vocab_size: int) -> np.dtype:
  return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_shard(
  folder: Path,
  name: str,
  features: Sequence[Sequence[Sequence[int]]],
  fields: Sequence[Any] | None,
  dtype: np.dtype,
  temporary: Path,
) -> dict[str, Any]:
  """Writes one shard from the ids of each feature of each example; returns its manifest entry."""
  rows = list(itertools.chain.from_iterable(zip(*features, strict=True)))
  offsets = np.zeros(len(rows) + 1, "<i8")
  np.cumsum([len(row) for row in rows], out=offsets[1:])
  contents = {
    "tokens": np.fromiter(itertools.chain.from_iterable(rows), dtype, int(offsets[-1])).tobytes(),
    "index": offsets.tobytes(),
  }
  if fields is not None:
    contents["fields"] = "".join(json.dumps(f, ensure_ascii=False) + "\n" for f in fields).encode(errors="replace")
  for kind, data in contents.items():
    write_atomic(folder / f"{name}.{kind}", data, temporary)
  return {
    "name": name,
    "examples": len(features[0]),
    "tokens": int(offsets[-1]),
    "files": {kind: {"bytes": len(data), "crc32": _as_text(block_sums(data))} for kind, data in contents.items()},
  }


def write_atomic(path: Path, data: bytes, temporary: Path) -> None:
  """Writes and syncs a file atomically: after a crash it is either complete or missing."""
  with storage.atomic_replace(path, temporary, sync=True) as fresh:
    fresh.write_bytes(data)


def block_sums(data: bytes | memoryview) -> list[int]:
  view = memoryview(data)
  return [zlib.crc32(view[start : start + BLOCK]) for start in range(0, len(view), BLOCK)]


def _as_text(sums: Sequence[int]) -> str:
  """Returns checksums as text, which is parsed 20 times faster than a list of numbers."""
  return np.asarray(sums, "<u4").tobytes().hex()


def checksums(about: Mapping[str, Any]) -> np.ndarray:
  """Returns the checksums of the blocks of a file, uint32 [blocks]; older manifests have a list of numbers."""
  given = about["crc32"]
  try:
    sums = np.frombuffer(bytes.fromhex(given), "<u4") if isinstance(given, str) else np.asarray(given, np.uint32)
    if sums.shape == (-(-about["bytes"] // BLOCK),):
      return sums
  except (ValueError, TypeError, OverflowError):
    pass
  raise UserError("the manifest of the token cache is corrupt: it has invalid checksums")


class CheckedFile:
  """A file of the cache whose blocks are verified on first read."""

  def __init__(self, path: Path, expected: Mapping[str, Any], repair: str):
    """Checks that the file exists and has its size; `repair` is the command that repairs it, for error messages."""
    self.path, self._sums, self._repair = path, checksums(expected), repair
    try:
      size = path.stat().st_size
    except OSError:
      raise UserError("a file of the token cache is missing", file=path, try_=repair) from None
    if size != expected["bytes"]:
      raise UserError(
        "a file of the token cache has the wrong size",
        file=path,
        found=size,
        expected=expected["bytes"],
        try_=repair,
      )
    self.bytes = size
    self._unread = np.ones(len(self._sums), bool)
    self._data: np.ndarray | None = None

  @property
  def data(self) -> np.ndarray:
    """The content as uint8 [bytes], not verified; the file stays open."""
    if self._data is None:
      # A plain array over the map: slicing np.memmap takes microseconds.
      self._data = np.asarray(np.memmap(self.path, np.uint8, mode="r")) if self.bytes else np.zeros(0, np.uint8)
    return self._data

  def check(self, start: int, stop: int) -> None:
    """Verifies the checksums of the blocks from byte `start` to `stop` that were not verified before."""
    first, last = start // BLOCK, -(-stop // BLOCK)
    if self._unread[first:last].any():
      for block in first + np.flatnonzero(self._unread[first:last]):
        self._compare(int(block), self.data[block * BLOCK : (block + 1) * BLOCK])

  def read(self) -> bytes:
    """Returns the verified content without keeping the file open."""
    content = self.path.read_bytes()
    for block in range(len(self._sums)):
      self._compare(block, content[block * BLOCK : (block + 1) * BLOCK])
    return content

  @property
  def fully_checked(self) -> bool:
    return not self._unread.any()

  def _compare(self, block: int, content: bytes | np.ndarray) -> None:
    if zlib.crc32(content) != self._sums[block]:
      raise UserError(
        "a file of the token cache is corrupt (wrong checksum)",
        file=self.path,
        bytes=f"{block * BLOCK:,} to {min((block + 1) * BLOCK, self.bytes):,}",
        try_=self._repair,
      )
    self._unread[block] = False
