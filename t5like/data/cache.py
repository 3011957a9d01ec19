"""A token cache: written once by `cache_builder`, read by any number of runs.

The folder holds shards and `cache.json`, the manifest: a folder without it is not a cache. This
module needs neither seqio nor TensorFlow.
"""

from __future__ import annotations

import functools
import json
import resource
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from t5like.data.documents import Documents, Indices
from t5like.data.in_place import StreamedFile, StreamedTokens, Units
from t5like.data.mirror import MANIFEST, check_remote, copy_to_mirror
from t5like.data.shards import CheckedFile, repair_command
from t5like.errors import UserError
from t5like.files import storage
from t5like.files.source_files import changed_file, other_files
from t5like.objectives import Ragged

FORMAT = 2
# In memory, of a cache that is read in place: the previous pool, the current one, and the next, with the ends of blocks
# that rows do not fill.
_POOLS_KEPT = 4
_CHECKED_AT_ONCE = 1 << 27  # bytes; a larger cache is checked block by block as it is read


def cache_folder(root: str | Path, task: str, split: str, vocabulary: str, vocabulary_fingerprint: str) -> Path:
  """Returns the folder of a task's cache under `root`, one per vocabulary and split."""
  for what, given in (("task", task), ("split", split)):
    check_name(what, given)
  name = f"{Path(vocabulary).stem}-{vocabulary_fingerprint[:8]}"
  return storage.as_path(root) / task / name / split


def finished_folder(folder: Path, lengths: Mapping[str, int]) -> Path:
  """Returns the folder of a task's finished tokens: next to `folder`, its text cache, with the lengths in the name."""
  return folder.with_name(".".join([folder.name, *(f"{name}{length}" for name, length in sorted(lengths.items()))]))


def check_name(what: str, name: str) -> None:
  """Raises UserError if a task or split name would escape the folder of token caches."""
  if not name or not all(map(storage.is_plain_name, name.split("/"))):
    raise UserError(f"invalid {what} name: {name[:60]!r}", expected="a registered name, without '..', '//' or NUL")


class _Shard:
  """The files of one shard: memory-mapped on first use, or read in place."""

  def __init__(
    self, folder: Path, entry: Mapping[str, Any], dtype: np.dtype, rebuild_command: str, units: Units | None
  ):
    self._dtype, self._units = dtype, units
    self.files = {}
    repair = repair_command(rebuild_command, entry["name"])
    for kind, about in entry["files"].items():
      path = folder / f"{entry['name']}.{kind}"
      if units:
        self.files[kind] = StreamedFile(path, about, repair, units)
      else:
        copy_again = f"rm {path}   (the next run copies it again)"
        self.files[kind] = CheckedFile(path, about, copy_again if storage.is_mirrored(path) else repair)

  @functools.cached_property
  def tokens(self) -> np.ndarray | StreamedTokens:
    """Token ids [tokens], not yet verified."""
    if self._units:
      return StreamedTokens(self.files["tokens"], self._dtype)
    return self.files["tokens"].data.view(self._dtype)

  def read_index(self) -> np.ndarray:
    """Returns offsets into `tokens`: [examples * features + 1]."""
    return np.frombuffer(self.files["index"].read(), "<i8")

  def check(self, start: int, stop: int) -> None:
    size = self._dtype.itemsize
    self.files["tokens"].check(start * size, stop * size)


class _Shards:
  """The shards of a cache. Those of one that is read in place are created when they are used."""

  def __init__(self, folder: Path, manifest: Mapping[str, Any], rebuild_command: str, units: Units | None):
    self._folder, self._entries, self._rebuild_command = folder, manifest["shards"], rebuild_command
    self._dtype, self._units = np.dtype(manifest["dtype"]), units
    self._used: dict[int, _Shard] = {}
    if not units:
      for _ in self:  # finds missing and truncated files
        pass

  def __len__(self) -> int:
    return len(self._entries)

  def __getitem__(self, at: int) -> _Shard:
    if at not in self._used:
      entry = self._entries[at]
      self._used[at] = _Shard(self._folder, entry, self._dtype, self._rebuild_command, self._units)
    return self._used[at]

  def __iter__(self) -> Iterator[_Shard]:
    return map(self.__getitem__, range(len(self)))


class TokenCache:
  """An open token cache. Example and token numbers run through all shards."""

  def __init__(
    self,
    folder: Path,
    manifest: Mapping[str, Any],
    rebuild_command: str,
    scoring: Mapping[str, Any] | None = None,
    pool: int = 0,
  ):
    """Opens the files of a cache, or (`pool`) reads them in place, in pools of that number of bytes."""
    self.folder, self.manifest, self._rebuild_command, self.pool = folder, manifest, rebuild_command, pool
    self.origin = folder  # of which `folder` may be a copy
    self.scoring = manifest["scoring"] if scoring is None else scoring  # postprocessor and metrics
    self._shards = _Shards(folder, manifest, rebuild_command, Units(_POOLS_KEPT * pool) if pool else None)
    self._indices = Indices(lambda at: self._shards[at].read_index())
    self._announced: set[Hashable] = set()  # parts that are read ahead
    self._announcer = ThreadPoolExecutor(1, "read_ahead")
    self._first = np.cumsum([0, *(s["examples"] for s in manifest["shards"])], dtype=np.int64)  # [shards + 1]
    self._first_token = np.cumsum([0, *(s["tokens"] for s in manifest["shards"])], dtype=np.int64)  # [shards + 1]
    self._checked = np.zeros(len(self._shards), bool)  # shards whose tokens are all verified
    self._lengths: dict[str, np.ndarray] = {}

  def __reduce__(self):
    # Memory maps and threads cannot be pickled.
    return open_cache, (self.folder, self._rebuild_command, self.scoring, self.pool)

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
    """Whether this is running text to corrupt, not examples with inputs and targets."""
    return self.features == ["targets"] and not self.is_finished

  @property
  def is_finished(self) -> bool:
    """Whether the examples are fully preprocessed: nothing is trimmed or appended when they are read."""
    return self.manifest.get("finished", False)

  def eos_placement(self, feature: str) -> str:
    """Returns when end-of-sequence is appended to a feature: "after_trim", "before_trim" or "none"."""
    return "none" if self.is_finished else self.manifest.get("closing", {}).get(feature, "after_trim")

  def example(self, number: int) -> dict[str, np.ndarray]:
    """Returns the tokens of one example by feature."""
    at = int(np.searchsorted(self._first, number, side="right")) - 1
    shard, width = self._shards[at], len(self.features)
    row = (number - int(self._first[at])) * width
    bounds = self._indices[at][row : row + width + 1].tolist()
    if not self._checked[at]:
      self._check(at, bounds[0], bounds[-1])
    return {
      feature: shard.tokens[bounds[i] : bounds[i + 1]].astype(np.int32) for i, feature in enumerate(self.features)
    }

  def stream(self, start: int, length: int) -> np.ndarray:
    """Returns `length` tokens from token number `start`, with all examples read end to end."""
    out = np.empty(length, np.int32)
    filled = 0
    while filled < length:
      at = int(np.searchsorted(self._first_token, start + filled, side="right")) - 1
      offset = start + filled - int(self._first_token[at])
      stop = min(offset + length - filled, int(self._first_token[at + 1] - self._first_token[at]))
      if not self._checked[at]:
        self._check(at, offset, stop)
      out[filled : filled + stop - offset] = self._shards[at].tokens[offset:stop]
      filled += stop - offset
    return out

  def stream_rows(self, starts: np.ndarray, length: int) -> np.ndarray:
    """Like `stream` for many rows at once: [rows] to int32 [rows, length]."""
    starts = np.asarray(starts, np.int64)
    if len(starts) and (starts.min() < 0 or starts.max() + length > self.tokens):
      raise IndexError(f"rows of {length} tokens from {starts.min()} to {starts.max()} of {self.tokens}")
    shards = self._shards_of(starts)
    offsets = starts - self._first_token[shards]
    stops = offsets + length
    across = starts + length > self._first_token[shards + 1]
    self._check_rows(shards[~across], offsets[~across], stops[~across])
    out = np.empty((len(starts), length), np.int32)
    tokens = {at: self._shards[at].tokens for at in set(shards.tolist())}
    for row, at, start, stop in zip(out, shards.tolist(), offsets.tolist(), stops.tolist(), strict=True):
      piece = tokens[at][start:stop]
      if len(piece) == length:
        row[:] = piece
    for number in np.flatnonzero(across):
      out[number] = self.stream(int(starts[number]), length)
    return out

  def read_ahead(self, part: Hashable, spans: Callable[[], tuple[np.ndarray, np.ndarray]]) -> None:
    """Starts to read tokens that will be needed, once for each `part`; `spans` returns their first and last numbers."""
    if not self.pool or part in self._announced:
      return
    self._announced.add(part)
    self._announcer.submit(self._read_ahead, spans)

  def _read_ahead(self, spans: Callable[[], tuple[np.ndarray, np.ndarray]]) -> None:
    size = np.dtype(self.manifest["dtype"]).itemsize
    for start, stop in zip(*(x.tolist() for x in spans()), strict=True):
      while start < min(stop, self.tokens):
        at = int(np.searchsorted(self._first_token, start, side="right")) - 1
        end = min(stop, int(self._first_token[at + 1]))
        offset = int(self._first_token[at])
        self._shards[at].files["tokens"].read_ahead((start - offset) * size, (end - offset) * size)
        start = end

  def documents(self) -> Documents:
    """Returns where the documents of a corpus start and end."""
    if len(self.features) != 1:
      raise ValueError(f"examples of {', '.join(self.features)} are not documents")
    return Documents.of(self._first, self._first_token, self._indices)

  def lengths(self, feature: str) -> np.ndarray:
    """Returns the number of tokens of a feature in each example: int32 [examples]."""
    if feature not in self._lengths:
      per_example = np.diff(self._bounds).reshape(-1, len(self.features))
      self._lengths[feature] = per_example[:, self.features.index(feature)].astype(np.int32)
    return self._lengths[feature]

  def texts(self, feature: str, numbers: np.ndarray) -> Ragged:
    """Returns the tokens of a feature in the given examples."""
    first = np.asarray(numbers, np.int64) * len(self.features) + self.features.index(feature)
    starts, stops = self._bounds[first], self._bounds[first + 1]
    shards = self._shards_of(starts)
    lengths = stops - starts
    starts, stops = starts - self._first_token[shards], stops - self._first_token[shards]
    self._check_rows(shards, starts, stops)
    out = np.zeros((len(first), int(lengths.max(initial=0))), np.int32)
    tokens = {at: self._shards[at].tokens for at in set(shards.tolist())}
    for row, at, start, stop in zip(out, shards.tolist(), starts.tolist(), stops.tolist(), strict=True):
      row[: stop - start] = tokens[at][start:stop]
    return Ragged(out, lengths)

  def fields(self) -> Iterator[dict[str, Any]]:
    """Yields the raw fields of every example in order."""
    for shard in self._shards:
      if "fields" not in shard.files:
        raise UserError("this token cache has no raw fields, because its task has no metrics", folder=self.folder)
      yield from map(json.loads, shard.files["fields"].read().splitlines())

  @functools.cached_property
  def _bounds(self) -> np.ndarray:
    """The index over all shards: token numbers [examples * features + 1]."""
    starts = [self._indices[at][:-1] + self._first_token[at] for at in range(len(self._shards))]
    return np.concatenate([*starts, self._first_token[-1:]])

  def _shards_of(self, tokens: np.ndarray) -> np.ndarray:
    """Returns the shard of each token number [tokens]; an empty example at the very end belongs to the last shard."""
    return np.minimum(np.searchsorted(self._first_token, tokens, side="right") - 1, len(self._shards) - 1)

  def _check_rows(self, shards: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> None:
    for row in np.flatnonzero(~self._checked[shards]):
      self._check(int(shards[row]), int(starts[row]), int(stops[row]))

  def _check(self, at: int, start: int, stop: int) -> None:
    self._shards[at].check(start, stop)
    self._checked[at] = self._shards[at].files["tokens"].fully_checked

  def check_all(self) -> None:
    """Verifies every byte; raises UserError naming the first damaged file."""
    for at, shard in enumerate(self._shards):
      for file in shard.files.values():
        file.check(0, file.bytes)
      self._checked[at] = True


def open_cache(
  folder: Path,
  rebuild_command: str,
  scoring: Mapping[str, Any] | None = None,
  pool: int | Callable[[int], int] = 0,
) -> TokenCache:
  """Opens a cache; a remote one is copied to this machine first, unless it is read in place.

  Missing and truncated files are detected here, corrupt ones here too if the cache is small, otherwise on first read.

  Args:
    folder: the cache, local or remote.
    rebuild_command: the command that rebuilds it, for error messages.
    scoring: overrides the postprocessor and metrics in the manifest.
    pool: read the cache in place, in pools of this number of bytes; 0: copy it to this machine. Or a function that
      decides it for a corpus, given its bytes.
  """
  manifest, text = read_manifest(folder, rebuild_command)
  if callable(pool):
    is_corpus = manifest["features"] == ["targets"] and not manifest.get("finished")
    pool = pool(_bytes(manifest)) if is_corpus else 0
  if pool:
    return TokenCache(folder, manifest, rebuild_command, scoring, pool)
  origin = folder
  if storage.is_remote(folder):
    folder = copy_to_mirror(folder, manifest, text, rebuild_command)
  _allow_open_files(len(manifest["shards"]))
  cache = TokenCache(folder, manifest, rebuild_command, scoring)
  cache.origin = origin
  if _bytes(manifest) <= _CHECKED_AT_ONCE:
    cache.check_all()
  return cache


def _allow_open_files(count: int) -> None:
  """Raises the limit on open files: token files stay open, and a 100 GB cache has more than the default limit."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  needed = count + 1024
  if soft != resource.RLIM_INFINITY and soft < needed:
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _bytes(manifest: Mapping[str, Any]) -> int:
  return sum(file["bytes"] for shard in manifest["shards"] for file in shard["files"].values())


def describe_cache(folder: Path) -> dict[str, Any]:
  """Returns the description of what a cache was built from, after checking its files; a remote one is not copied."""
  if not storage.is_remote(folder):
    return open_cache(folder, rebuild_command="").manifest["description"]
  manifest, _ = read_manifest(folder, rebuild_command="")
  check_remote(folder, manifest, rebuild_command="")
  return manifest["description"]


def read_manifest(folder: Path, rebuild_command: str) -> tuple[dict[str, Any], bytes]:
  """Returns the manifest of a cache, and its text."""
  path = folder / MANIFEST
  try:
    text = path.read_bytes()
    manifest = storage.parse_json(text)
    if manifest["format"] != FORMAT:
      raise UserError(
        "the token cache has a different format version",
        file=path,
        found=manifest["format"],
        expected=FORMAT,
        try_=rebuild_command,
      )
    _check_manifest(manifest)
    return manifest, text
  except OSError as error:
    raise UserError("no token cache found", folder=folder, because=error.strerror, try_=rebuild_command) from None
  except (ValueError, KeyError, TypeError, AttributeError):
    raise UserError("the manifest of the token cache is corrupt", file=path, try_=rebuild_command) from None


def _check_manifest(manifest: Mapping[str, Any]) -> None:
  """Raises ValueError or TypeError if a manifest is not one of `build_cache`, or points outside its folder."""
  for shard in manifest["shards"]:
    if not all(map(storage.is_plain_name, [shard["name"], *shard["files"]])):
      raise ValueError("a shard's name points outside the folder")
    counts = [shard["examples"], shard["tokens"], *(file["bytes"] for file in shard["files"].values())]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
      raise ValueError("a shard's counts are not non-negative integers")
  for name, kind in (("examples", int), ("tokens", int), ("features", list), ("description", dict), ("scoring", dict)):
    if not isinstance(manifest[name], kind):
      raise TypeError(f"invalid {name}: {manifest[name]!r}")


def changed_since_written(cache: TokenCache, vocabulary_fingerprint: str, files: str | None = None) -> str:
  """Returns why the cache is stale, or '' if no change is detected; `files` is the pattern of its files now, if known.

  Changes that only TensorFlow can detect (in the preprocessors) are left to `t5like cache`.
  """
  if cache.manifest["vocabulary"]["fingerprint"] != vocabulary_fingerprint:
    return "the vocabulary has changed"
  if cache.is_finished and "targets_vocabulary" not in cache.manifest and _has_two_vocabularies(cache):
    return "it does not record the vocabulary of its targets"
  sources = cache.manifest["description"]["source_files"]
  return changed_file(sources, _written(cache)) or (other_files(sources, files) if isinstance(files, str) else "")


def _written(cache: TokenCache) -> float:
  """Returns when a cache was written, in seconds."""
  try:
    return (cache.folder / MANIFEST).stat().st_mtime
  except OSError:
    return 0.0


def _has_two_vocabularies(cache: TokenCache) -> bool:
  """Returns whether inputs and targets have different vocabularies, according to the features' descriptions."""
  features = cache.manifest["description"].get("features", {})
  kinds = {str(features[name]).partition(" add_eos=")[0] for name in ("inputs", "targets") if name in features}
  return len(kinds) == 2 and not any(kind.startswith("PassThroughVocabulary") for kind in kinds)
