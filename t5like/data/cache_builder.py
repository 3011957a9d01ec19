"""Builds a token cache with several processes, and resumes a killed build.

The examples of each part of the source are cut into pieces independently of the number of workers, and
each piece becomes one shard. A shard is written atomically, then its entry; the manifest comes last.
The result is the same to the byte with any number of workers and interruptions.

    <folder>.lock                      the process that builds; removed at the end
    <folder>.building/plan.json        what is built: a different plan starts over
    <folder>.building/cache/           the shards, moved to <folder> when all are complete
    <folder>.building/entries/         their manifest entries, and which parts are complete
    <folder>.building/hashes/          of their examples, for the data card
    <folder>.unsent                    the plan of a complete cache that is being uploaded (mirror.py)
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import shutil
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.data.builder_lock import sole_builder
from t5like.data.cache import FORMAT, MANIFEST
from t5like.data.mirror import publish
from t5like.data.piece_workers import PieceWorkers
from t5like.data.shards import CheckedFile, token_dtype, write_atomic, write_shard
from t5like.errors import UserError
from t5like.files import data_card, storage
from t5like.files.data_card import OriginCounter

Example = Mapping[str, Any]
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
EncodeExamples = Callable[[Sequence[Example]], Sequence[Sequence[Sequence[int]]]]  # ids by feature and example


@dataclasses.dataclass(frozen=True)
class PieceLimits:
  """A piece ends at either limit: a few seconds of work, which is what a kill can cost each worker."""

  examples: int = 16_384
  characters: int = 1 << 24


DEFAULT_LIMITS = PieceLimits()


@dataclasses.dataclass(frozen=True)
class CacheProgress:
  """The progress of a build, and how much of it comes from an earlier attempt."""

  examples: int
  tokens: int
  resumed_examples: int
  resumed_tokens: int


def write_cache(
  folder: Path,
  examples: Iterable[Example],
  features: Sequence[str],
  encode: Encode,
  vocabulary: Mapping[str, Any],
  description: Mapping[str, Any],
  scoring: Mapping[str, Any],
) -> None:
  """Tokenizes `features` of every example in this process; a failed build leaves nothing behind.

  The examples' other fields are kept as raw fields.
  """
  with sole_builder(folder):
    forget_attempt(folder)
    try:
      build_cache(folder, plan_cache(features, vocabulary, description, scoring), [lambda: examples], encode)
    finally:
      forget_attempt(folder)


def forget_attempt(folder: Path) -> None:
  """Removes what an unfinished build has left; call it inside `sole_builder(folder)`."""
  shutil.rmtree(_building(storage.local_counterpart(folder)), ignore_errors=True)


def build_cache(
  folder: Path,
  plan: Mapping[str, Any],
  parts: Sequence[Callable[[], Iterable[Example]]],
  encode: Encode | None,
  *,
  workers: int = 0,
  limits: PieceLimits = DEFAULT_LIMITS,
  progress: Callable[[CacheProgress], None] = lambda done: None,
  encode_examples: EncodeExamples | None = None,
  origins: OriginCounter | None = None,
) -> None:
  """Builds a cache with its data card, or resumes building it; call it inside `sole_builder(folder)`.

  Args:
    folder: the cache, local or remote.
    plan: of `plan_cache`.
    parts: functions that return the examples of each part of the source, always in the same order.
    encode: turns texts into ids; None if the features are ids already. Must be picklable if there are workers.
    workers: number of worker processes, in addition to this one.
    limits: the size of a piece.
    progress: called after each piece.
    encode_examples: used instead of `encode` for features that are not single texts; raw fields keep their names.
    origins: counts where rows of the source are from.
  """
  local = storage.local_counterpart(folder)
  building = _building(local)
  unsent = local.with_name(f"{local.name}.unsent")
  try:
    if storage.is_remote(folder) and _is_awaiting_upload(unsent, plan):
      _upload(local, folder, unsent)
      return
    _start(building, {**plan, "parts": len(parts), "limits": dataclasses.asdict(limits)})
    builder = PieceBuilder.of(building, plan, encode, encode_examples)
    shards = _build_shards(builder, parts, limits, workers, progress)
    hashes = (builder.hashes_path(shard["name"]) for shard in shards)
    data_card.write_cache_card(building / "cache", plan, shards, map(data_card.read_hashes, hashes), origins)
    _finish(local, building, plan, shards)
    if storage.is_remote(folder):
      storage.write_atomic(unsent, json.dumps(plan, sort_keys=True))
      _upload(local, folder, unsent)
  except OSError as error:
    raise _cannot_write(folder, error) from error


def plan_cache(
  features: Sequence[str],
  vocabulary: Mapping[str, Any],
  description: Mapping[str, Any],
  scoring: Mapping[str, Any],
  more: Mapping[str, Any] = types.MappingProxyType({}),
) -> dict[str, Any]:
  """Returns the manifest of a cache without its content.

  Args:
    features: the features to tokenize.
    vocabulary: its name, size and fingerprint.
    description: everything that the text depends on.
    scoring: the postprocessor and metrics.
    more: further entries of the manifest.
  """
  return {
    "format": FORMAT,
    "features": list(features),
    "dtype": token_dtype(vocabulary["size"]).str,
    "vocabulary": dict(vocabulary),
    "description": dict(description),
    "scoring": dict(scoring),
    **more,
  }


@dataclasses.dataclass(frozen=True)
class PieceBuilder:
  """Tokenizes the examples of a piece and writes its shard; sent to each worker."""

  building: Path
  features: tuple[str, ...]
  encode: Encode | None
  dtype: np.dtype
  keep_fields: bool
  encode_examples: EncodeExamples | None = None

  @classmethod
  def of(
    cls, building: Path, plan: Mapping[str, Any], encode: Encode | None, encode_examples: EncodeExamples | None
  ) -> PieceBuilder:
    """Returns the builder of a planned cache."""
    # A corpus is a single feature without metrics: its text need not be kept in addition to its tokens.
    keep_fields = len(plan["features"]) > 1 or bool(plan["scoring"]["metrics"])
    return cls(building, tuple(plan["features"]), encode, np.dtype(plan["dtype"]), keep_fields, encode_examples)

  def needed(self, example: Example) -> Example:
    """Drops fields that are not stored, so that they are not sent to a worker."""
    return example if self.keep_fields else {name: example.get(name) for name in self.features}

  def __call__(self, name: str, examples: Sequence[Example]) -> dict[str, Any]:
    if self.encode_examples is not None:
      encoded = self.encode_examples(examples)
    elif self.encode is None:
      encoded = [[example[feature] for example in examples] for feature in self.features]
    else:
      encoded = [self.encode([_text(example, feature) for example in examples]) for feature in self.features]
    fields = [self._fields(example) for example in examples] if self.keep_fields else None
    temporary = self.building / "temporary"
    entry = write_shard(self.building / "cache", name, encoded, fields, self.dtype, temporary)
    hashes = np.array([self._hash(example) for example in examples], "<u8")
    write_atomic(self.hashes_path(name), hashes.tobytes(), temporary)
    write_atomic(self.building / "entries" / f"{name}.json", json.dumps(entry).encode(), temporary)
    return entry

  def _hash(self, example: Example) -> int:
    values = example.values() if self.encode_examples is not None else (example[name] for name in self.features)
    return data_card.text_hash(*map(str, values))

  def hashes_path(self, name: str) -> Path:
    """Returns the file with the hashes of a shard's examples, for the data card."""
    return self.building / "hashes" / name

  def size(self, example: Example) -> int:
    """Returns the number of characters or ids to encode."""
    if self.encode_examples is not None:
      return sum(len(value) for value in example.values() if isinstance(value, str | list))
    texts = (example[name] if self.encode is None else _text(example, name) for name in self.features)
    return sum(map(len, texts))

  def _fields(self, example: Example) -> dict[str, Any]:
    """Returns the raw fields; the text of features gets seqio's name for it, ids are stored as tokens."""
    if self.encode_examples is not None:
      return dict(example)
    if self.encode is None:
      return {name: value for name, value in example.items() if name not in self.features}
    return {f"{name}_pretokenized" if name in self.features else name: value for name, value in example.items()}

  def intact_entry(self, name: str, examples: int | None = None) -> dict[str, Any] | None:
    """Returns the entry of a shard from an earlier attempt if the shard is intact, else None."""
    try:
      entry = json.loads((self.building / "entries" / f"{name}.json").read_bytes())
      for kind, expected in entry["files"].items():
        CheckedFile(self.building / "cache" / f"{name}.{kind}", expected, repair="").read()
    except (OSError, ValueError, KeyError, UserError):
      return None
    return entry if examples in (None, entry["examples"]) else None


def _is_awaiting_upload(unsent: Path, plan: Mapping[str, Any]) -> bool:
  """Returns whether an earlier attempt at this plan was complete and stopped during the upload."""
  return unsent.is_file() and unsent.read_text(encoding="utf-8") == json.dumps(plan, sort_keys=True)


def _upload(local: Path, folder: Path, unsent: Path) -> None:
  publish(local, folder)
  unsent.unlink()


def _building(folder: Path) -> Path:
  return folder.with_name(f"{folder.name}.building")


def _start(building: Path, plan: Mapping[str, Any]) -> None:
  """Keeps the shards of an earlier attempt at the same plan; removes anything else."""
  path, text = building / "plan.json", json.dumps(plan, sort_keys=True).encode()
  try:
    same = path.read_bytes() == text
  except OSError:
    same = False
  if not same:
    shutil.rmtree(building, ignore_errors=True)
  shutil.rmtree(building / "temporary", ignore_errors=True)
  for name in ("cache", "entries", "hashes", "temporary"):
    (building / name).mkdir(parents=True, exist_ok=True)
  write_atomic(path, text, building / "temporary")


def _build_shards(
  builder: PieceBuilder,
  parts: Sequence[Callable[[], Iterable[Example]]],
  limits: PieceLimits,
  workers: int,
  progress: Callable[[CacheProgress], None],
) -> list[dict[str, Any]]:
  """Writes all missing shards; returns the entries of all, in the order of the source."""
  entries = _Entries(builder, progress)
  with PieceWorkers(builder, workers) as pool:
    for part, open_part in enumerate(parts):
      if (complete := _complete_part(builder, part, len(parts))) is not None:
        for number, entry in enumerate(complete):
          entries.add((part, number), entry, resumed=True)
        continue
      number = -1
      for number, (examples, characters) in enumerate(cut_pieces(open_part(), builder, limits)):
        name = shard_name(part, number, len(parts))
        if entry := builder.intact_entry(name, len(examples)):
          entries.add((part, number), entry, resumed=True)
        else:
          for ready in pool.submit((part, number), name, examples, characters):
            entries.add(*ready)
      entries.close(part, number + 1)
    for ready in pool.finish():
      entries.add(*ready)
  return entries.in_order()


class _Entries:
  """Collects the entries of shards in any order and records which parts are complete."""

  def __init__(self, builder: PieceBuilder, progress: Callable[[CacheProgress], None]):
    self._builder, self._progress = builder, progress
    self._entries: dict[tuple[int, int], dict[str, Any]] = {}
    self._done = CacheProgress(0, 0, 0, 0)
    self._missing: collections.Counter[int] = collections.Counter()  # by part; negative until the part is closed
    self._pieces: dict[int, int] = {}

  def add(self, piece: tuple[int, int], entry: dict[str, Any], resumed: bool = False) -> None:
    self._entries[piece] = entry
    counts = (entry["examples"], entry["tokens"])
    added = (*counts, *(counts if resumed else (0, 0)))
    self._done = CacheProgress(*(a + b for a, b in zip(dataclasses.astuple(self._done), added, strict=True)))
    self._progress(self._done)
    self._missing[piece[0]] -= 1
    self._record_if_complete(piece[0])

  def close(self, part: int, pieces: int) -> None:
    """Marks a part as read to its end; workers may still be writing some of its pieces."""
    self._pieces[part] = pieces
    self._missing[part] += pieces
    self._record_if_complete(part)

  def in_order(self) -> list[dict[str, Any]]:
    return [self._entries[piece] for piece in sorted(self._entries)]

  def _record_if_complete(self, part: int) -> None:
    if part in self._pieces and not self._missing[part]:
      path = self._builder.building / "entries" / f"part-{part:05d}"
      write_atomic(path, str(self._pieces[part]).encode(), self._builder.building / "temporary")


def cut_pieces(
  examples: Iterable[Example], builder: PieceBuilder, limits: PieceLimits
) -> Iterator[tuple[list[Example], int]]:
  """Yields the pieces and the number of characters of each."""
  piece: list[Example] = []
  characters = 0
  for example in examples:
    piece.append(builder.needed(example))
    characters += builder.size(example)
    if len(piece) == limits.examples or characters >= limits.characters:
      yield piece, characters
      piece, characters = [], 0
  if piece:
    yield piece, characters


def shard_name(part: int, number: int, parts: int) -> str:
  return f"shard-{number:05d}" if parts == 1 else f"shard-{part:05d}-{number:05d}"


def part_of(shard: str) -> int:
  """Returns the part of the source that a shard is from, given the name of `shard_name`."""
  _, first, *piece = shard.split("-")
  return int(first) if piece else 0


def _complete_part(builder: PieceBuilder, part: int, parts: int) -> list[dict[str, Any]] | None:
  """Returns the entries of a part that an earlier attempt completed (its source need not be read again), else None."""
  try:
    pieces = int((builder.building / "entries" / f"part-{part:05d}").read_text())
  except (OSError, ValueError):
    return None
  entries = [builder.intact_entry(shard_name(part, number, parts)) for number in range(pieces)]
  return None if None in entries else entries


def manifest_of(plan: Mapping[str, Any], shards: Sequence[Mapping[str, Any]]) -> bytes:
  """Returns the manifest of a cache with these shards."""
  totals = {count: sum(shard[count] for shard in shards) for count in ("examples", "tokens")}
  if not totals["tokens"]:
    description = plan["description"]
    raise UserError(f"task {description['task']!r} has no text in split {description['split']!r}")
  return (json.dumps({**plan, **totals, "shards": shards}, indent=1) + "\n").encode()


def _finish(folder: Path, building: Path, plan: Mapping[str, Any], shards: list[dict[str, Any]]) -> None:
  cache = building / "cache"
  write_atomic(cache / MANIFEST, manifest_of(plan, shards), building / "temporary")
  expected = {MANIFEST, *data_card.FILES, *(f"{shard['name']}.{kind}" for shard in shards for kind in shard["files"])}
  for path in cache.iterdir():
    if path.name not in expected:
      path.unlink()
  if folder.exists():
    shutil.rmtree(building / "replaced", ignore_errors=True)  # of an attempt that was killed here
    folder.rename(building / "replaced")
  cache.rename(folder)
  shutil.rmtree(building, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> UserError:
  if error.errno in storage.DISK_FULL:
    parent = storage.local_counterpart(folder).parent
    free = shutil.disk_usage(parent).free if parent.exists() else 0
    return UserError(
      "not enough disk space for the token cache",
      folder=folder,
      because=os.strerror(error.errno),
      free=f"{free / 1e9:.2f} GB",
      try_="free some space and run the same command again: it resumes",
    )
  return UserError("cannot write the token cache", folder=folder, because=error.strerror or error)


def _text(example: Example, feature: str) -> str:
  value = example.get(feature)
  if not isinstance(value, str):
    raise UserError(f"an example has no text {feature!r}", found=", ".join(example), value=repr(value)[:100])
  return value
