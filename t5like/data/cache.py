"""A token cache: written once from an iterator of examples, read by any number of runs.

The folder holds shards and `cache.json`, the manifest, which is written last: a folder without it
is not a cache. Nothing here knows seqio or TensorFlow.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.data.shards import check_shard, token_dtype, write_shard
from t5like.errors import UserError

FORMAT = 1
MANIFEST = "cache.json"
_SHARD_EXAMPLES = 16_384


def cache_folder(root: str | Path, task: str, split: str, vocabulary: str, vocabulary_fingerprint: str) -> Path:
  """Where the cache of a task lives under `root`: one folder for each vocabulary and split."""
  name = f"{Path(vocabulary).stem}-{vocabulary_fingerprint[:8]}"
  return Path(root).expanduser() / task / name / split


def write_cache(
  folder: Path,
  examples: Iterable[Mapping[str, Any]],
  features: Sequence[str],
  encode: Callable[[Sequence[str]], Sequence[Sequence[int]]],
  vocabulary: Mapping[str, Any],
  description: Mapping[str, Any],
  scoring: Mapping[str, Any],
  progress: Callable[[int, int], None] = lambda examples, tokens: None,
) -> None:
  """Tokenises `features` of every example and writes them; other members are kept as raw fields.

  Built beside `folder` and moved there whole, so a killed build leaves nothing that could be taken
  for a cache, and two builders at once do no harm. `progress` is told examples and tokens so far.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  _remove_abandoned(folder)
  building = folder.with_name(f"{folder.name}.building-{os.getpid()}")
  building.mkdir()
  try:
    shards, num_examples, num_tokens = [], 0, 0
    dtype = token_dtype(vocabulary["size"])
    # A corpus is a single feature that nobody scores: its text need not be kept beside its tokens.
    keep_fields = len(features) > 1 or bool(scoring["metrics"])
    remaining = iter(examples)
    while batch := list(itertools.islice(remaining, _SHARD_EXAMPLES)):
      encoded = [encode([_text(example, feature) for example in batch]) for feature in features]
      rows = [dict(zip(features, row, strict=True)) for row in zip(*encoded, strict=True)]
      fields = [_fields(example, features) for example in batch] if keep_fields else None
      shards.append(write_shard(building, len(shards), rows, fields, dtype))
      num_examples += shards[-1]["examples"]
      num_tokens += shards[-1]["tokens"]
      progress(num_examples, num_tokens)
    if not num_tokens:
      raise UserError(f"task {description['task']!r} gave no text in split {description['split']!r}")
    manifest = {
      "format": FORMAT,
      "features": list(features),
      "dtype": dtype.str,
      "examples": num_examples,
      "tokens": num_tokens,
      "vocabulary": dict(vocabulary),
      "description": dict(description),
      "scoring": dict(scoring),
      "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
      "shards": shards,
    }
    (building / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    if folder.exists():
      shutil.rmtree(folder)
    building.rename(folder)
  except OSError as error:
    raise UserError(
      "the token cache could not be written", folder=folder, because=error.strerror or error, left="nothing behind"
    ) from error
  finally:
    shutil.rmtree(building, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
  """Removes what killed builders left: a build whose process no longer lives."""
  for leftover in folder.parent.glob(f"{folder.name}.building-*"):
    pid = leftover.name.rsplit("-", 1)[1]
    if pid.isdigit() and not Path(f"/proc/{pid}").exists():
      shutil.rmtree(leftover, ignore_errors=True)


def _text(example: Mapping[str, Any], feature: str) -> str:
  value = example.get(feature)
  if not isinstance(value, str):
    raise UserError(f"an example has no text {feature!r}", found=", ".join(example), value=repr(value)[:100])
  return value


def _fields(example: Mapping[str, Any], features: Sequence[str]) -> dict[str, Any]:
  """Raw members, the text of features under seqio's name for it."""
  return {f"{name}_pretokenized" if name in features else name: value for name, value in example.items()}


@dataclasses.dataclass(frozen=True)
class TokenCache:
  """An opened, checked cache."""

  folder: Path
  manifest: Mapping[str, Any]
  _tokens: Sequence[np.ndarray]  # one memory map a shard
  _index: Sequence[np.ndarray]  # [examples, features + 1] a shard
  _first: np.ndarray  # [shards + 1] number of the first example of each shard
  _first_token: np.ndarray  # [shards + 1] number of the first token of each shard

  @property
  def examples(self) -> int:
    return self.manifest["examples"]

  @property
  def tokens(self) -> int:
    return self.manifest["tokens"]

  @property
  def features(self) -> list[str]:
    return self.manifest["features"]

  @property
  def is_corpus(self) -> bool:
    """Running text to corrupt, not examples with inputs and targets."""
    return self.features == ["targets"]

  def example(self, number: int) -> dict[str, np.ndarray]:
    """The tokens of one example by feature."""
    shard = int(np.searchsorted(self._first, number, side="right")) - 1
    index = self._index[shard][number - self._first[shard]]
    return {
      feature: np.asarray(self._tokens[shard][index[i] : index[i + 1]], np.int32)
      for i, feature in enumerate(self.features)
    }

  def stream(self, start: int, length: int) -> np.ndarray:
    """`length` tokens of the whole cache read end to end, from token number `start`."""
    out = np.empty(length, np.int32)
    filled = 0
    while filled < length:
      shard = int(np.searchsorted(self._first_token, start + filled, side="right")) - 1
      offset = start + filled - self._first_token[shard]
      piece = self._tokens[shard][offset : offset + length - filled]
      out[filled : filled + len(piece)] = piece
      filled += len(piece)
    return out

  def fields(self) -> Iterator[dict[str, Any]]:
    """The raw fields of every example in order."""
    for shard in self.manifest["shards"]:
      with (self.folder / f"{shard['name']}.fields").open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def open_cache(folder: Path, mend: str) -> TokenCache:
  """Opens and checks a cache; `mend` is the command that builds it anew, for error messages."""
  manifest = _read_manifest(folder, mend)
  for shard in manifest["shards"]:
    check_shard(folder, shard, mend)
  dtype = np.dtype(manifest["dtype"])
  width = len(manifest["features"])
  tokens, index = [], []
  for shard in manifest["shards"]:
    path = folder / shard["name"]
    tokens.append(np.memmap(f"{path}.tokens", dtype, mode="r") if shard["tokens"] else np.zeros(0, dtype))
    offsets = np.fromfile(f"{path}.index", "<i8")
    windows = np.lib.stride_tricks.sliding_window_view(offsets, width + 1)[::width]
    index.append(windows)
  counts = [s["examples"] for s in manifest["shards"]]
  sizes = [s["tokens"] for s in manifest["shards"]]
  return TokenCache(
    folder, manifest, tokens, index, np.cumsum([0, *counts]).astype(np.int64), np.cumsum([0, *sizes]).astype(np.int64)
  )


def _read_manifest(folder: Path, mend: str) -> dict[str, Any]:
  path = folder / MANIFEST
  try:
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if manifest["format"] != FORMAT:
      raise UserError(
        "the token cache was written in another format", file=path, found=manifest["format"], expected=FORMAT, try_=mend
      )
    return manifest
  except OSError as error:
    raise UserError("no token cache here", folder=folder, because=error.strerror, try_=mend) from None
  except (json.JSONDecodeError, KeyError, TypeError):
    raise UserError("the manifest of the token cache is corrupt", file=path, try_=mend) from None


def changed_since_written(cache: TokenCache, vocabulary_fingerprint: str) -> str:
  """Why the cache no longer fits what it was made from; '' when it does, as far as can be seen here.

  What needs TensorFlow to look at (the preprocessors) is compared by `t5like cache`.
  """
  if cache.manifest["vocabulary"]["fingerprint"] != vocabulary_fingerprint:
    return "the vocabulary has changed"
  for source in cache.manifest["description"]["source_files"]:
    path = Path(source["path"])
    if path.is_file() and path.stat().st_size != source["bytes"]:
      return f"{path} has changed"
  return ""
