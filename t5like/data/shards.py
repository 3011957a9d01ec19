"""The files of a token cache: ids of all examples end to end, an index of where each begins.

A shard `shard-00000` is three files:

    .tokens   ids of every feature of every example, uint16 or uint32, little-endian
    .index    int64 [examples * features + 1], offsets into .tokens: feature f of example e is
              tokens[index[e * features + f] : index[e * features + f + 1]]
    .fields   one JSON object a line: what metrics and people need (only for labelled examples)

Their sizes and CRC-32 sums stand in the cache's manifest.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.errors import UserError


def token_dtype(vocab_size: int) -> np.dtype:
  return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_shard(
  folder: Path,
  number: int,
  examples: Sequence[Mapping[str, Sequence[int]]],
  fields: Sequence[Any] | None,
  dtype: np.dtype,
) -> dict[str, Any]:
  """Writes one shard; returns its manifest entry."""
  rows = [np.asarray(row, dtype) for example in examples for row in example.values()]
  offsets = np.zeros(len(rows) + 1, "<i8")
  np.cumsum([len(row) for row in rows], out=offsets[1:])
  contents = {
    "tokens": np.concatenate(rows).tobytes() if rows else b"",
    "index": offsets.tobytes(),
  }
  if fields is not None:
    contents["fields"] = "".join(json.dumps(f, ensure_ascii=False) + "\n" for f in fields).encode()
  name = f"shard-{number:05d}"
  for kind, data in contents.items():
    (folder / f"{name}.{kind}").write_bytes(data)
  return {
    "name": name,
    "examples": len(examples),
    "tokens": int(offsets[-1]),
    "files": {kind: {"bytes": len(data), "crc32": zlib.crc32(data)} for kind, data in contents.items()},
  }


def check_shard(folder: Path, entry: Mapping[str, Any], mend: str) -> None:
  """Raises UserError for a missing, truncated or altered file of the shard."""
  for kind, expected in entry["files"].items():
    path = folder / f"{entry['name']}.{kind}"
    try:
      size = path.stat().st_size
    except OSError:
      raise UserError("a file of the token cache is missing", file=path, try_=mend) from None
    if size != expected["bytes"]:
      raise UserError(
        "a file of the token cache has the wrong size", file=path, found=size, expected=expected["bytes"], try_=mend
      )
    checksum = 0
    with path.open("rb") as data:
      while block := data.read(1 << 24):
        checksum = zlib.crc32(block, checksum)
    if checksum != expected["crc32"]:
      raise UserError("a file of the token cache is corrupt: its checksum differs", file=path, try_=mend)
