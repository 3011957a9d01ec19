"""Builds a token cache with several processes, and goes on where a killed build stopped.

The examples of each part of the source are cut into pieces by rules that know nothing of workers:
a piece becomes one shard, whoever makes it. A shard is written whole, then its entry; the manifest comes
last. What is built, by one worker or ten, at once or in eleven attempts, is the same to the byte.

    <folder>.lock                      who builds; gone when nobody does
    <folder>.building/plan.json        what is built: another plan starts over
    <folder>.building/cache/           the shards, moved to <folder> when all are there
    <folder>.building/entries/         their entries of the manifest, and which parts are complete
    <folder>.unsent                    the plan of a whole cache that is on its way to a store (mirror.py)
"""

from __future__ import annotations

import collections
import dataclasses
import errno
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
from t5like.data.shards import CheckedFile, token_dtype, write_shard, write_whole
from t5like.errors import UserError
from t5like.files import storage

Example = Mapping[str, Any]
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True)
class PieceLimits:
  """A piece ends at either: seconds of work, which is what a kill can cost each worker."""

  examples: int = 16_384
  characters: int = 1 << 24


DEFAULT_LIMITS = PieceLimits()


@dataclasses.dataclass(frozen=True)
class CacheProgress:
  """How far a build is, and how much of that an earlier attempt had done."""

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
  progress: Callable[[int, int], None] = lambda examples, tokens: None,
) -> None:
  """Tokenizes `features` of every example here and now; a build that fails leaves nothing behind.

  Other members of the examples are kept as raw fields. `progress` is told examples and tokens so far.
  """
  with sole_builder(folder):
    shutil.rmtree(_building(_made_in(folder)), ignore_errors=True)
    try:
      build_cache(
        folder,
        [lambda: examples],
        features,
        encode,
        vocabulary,
        description,
        scoring,
        progress=lambda done: progress(done.examples, done.tokens),
      )
    finally:
      shutil.rmtree(_building(_made_in(folder)), ignore_errors=True)


def build_cache(
  folder: Path,
  parts: Sequence[Callable[[], Iterable[Example]]],
  features: Sequence[str],
  encode: Encode | None,
  vocabulary: Mapping[str, Any],
  description: Mapping[str, Any],
  scoring: Mapping[str, Any],
  *,
  workers: int = 0,
  limits: PieceLimits = DEFAULT_LIMITS,
  progress: Callable[[CacheProgress], None] = lambda done: None,
  more: Mapping[str, Any] = types.MappingProxyType({}),
) -> None:
  """Builds or goes on building the cache; call it inside `sole_builder(folder)`.

  Each of `parts` gives its examples in an order that never changes. `encode` turns texts into ids, None where features
  are ids already; with `workers` processes besides this one it must be picklable. `description` says all that the text
  depends on; `more` goes into the manifest.
  """
  made_in = _made_in(folder)
  building = _building(made_in)
  # A corpus is a single feature that nobody scores: its text need not be kept beside its tokens.
  keep_fields = len(features) > 1 or bool(scoring["metrics"])
  plan = {
    "format": FORMAT,
    "features": list(features),
    "dtype": token_dtype(vocabulary["size"]).str,
    "vocabulary": dict(vocabulary),
    "description": dict(description),
    "scoring": dict(scoring),
    **more,
  }
  unsent = made_in.with_name(f"{made_in.name}.unsent")
  try:
    if storage.is_remote(folder) and _holds(unsent, plan):
      _send(made_in, folder, unsent)
      return
    _start(building, {**plan, "parts": len(parts), "limits": dataclasses.asdict(limits)})
    maker = PieceMaker(building, tuple(features), encode, np.dtype(plan["dtype"]), keep_fields)
    shards = _make_all(maker, parts, limits, workers, progress)
    _finish(made_in, building, plan, shards)
    if storage.is_remote(folder):
      storage.write_whole(unsent, json.dumps(plan, sort_keys=True))
      _send(made_in, folder, unsent)
  except OSError as error:
    raise _cannot_write(folder, error) from error


@dataclasses.dataclass(frozen=True)
class PieceMaker:
  """What a worker knows: from the examples of a piece to its shard."""

  building: Path
  features: tuple[str, ...]
  encode: Encode | None
  dtype: np.dtype
  keep_fields: bool

  def needed(self, example: Example) -> Example:
    """Without what is not stored, which need not travel to a worker."""
    return example if self.keep_fields else {name: example.get(name) for name in self.features}

  def __call__(self, name: str, examples: Sequence[Example]) -> dict[str, Any]:
    if self.encode is None:
      encoded = [[example[feature] for example in examples] for feature in self.features]
    else:
      encoded = [self.encode([_text(example, feature) for example in examples]) for feature in self.features]
    fields = [self._fields(example) for example in examples] if self.keep_fields else None
    temporary = self.building / "temporary"
    entry = write_shard(self.building / "cache", name, encoded, fields, self.dtype, temporary)
    write_whole(self.building / "entries" / f"{name}.json", json.dumps(entry).encode(), temporary)
    return entry

  def _fields(self, example: Example) -> dict[str, Any]:
    """Raw members, the text of features under seqio's name for it; ids are in the tokens."""
    if self.encode is None:
      return {name: value for name, value in example.items() if name not in self.features}
    return {f"{name}_pretokenized" if name in self.features else name: value for name, value in example.items()}

  def made_before(self, name: str, examples: int | None = None) -> dict[str, Any] | None:
    """The entry of a shard that an earlier attempt wrote, if every byte of it is right."""
    try:
      entry = json.loads((self.building / "entries" / f"{name}.json").read_bytes())
      for kind, expected in entry["files"].items():
        CheckedFile(self.building / "cache" / f"{name}.{kind}", expected, rebuild_command="").read()
    except (OSError, ValueError, KeyError, UserError):
      return None
    return entry if examples in (None, entry["examples"]) else None


def _made_in(folder: Path) -> Path:
  """A cache for a store is built in this machine's copy of it."""
  return storage.mirror_folder(folder) if storage.is_remote(folder) else folder


def _holds(unsent: Path, plan: Mapping[str, Any]) -> bool:
  """Whether an earlier attempt at this plan has built everything, and was stopped while it sent."""
  return unsent.is_file() and unsent.read_text(encoding="utf-8") == json.dumps(plan, sort_keys=True)


def _send(made_in: Path, folder: Path, unsent: Path) -> None:
  publish(made_in, folder)
  unsent.unlink()


def _building(folder: Path) -> Path:
  return folder.with_name(f"{folder.name}.building")


def _start(building: Path, plan: Mapping[str, Any]) -> None:
  """Keeps what an earlier attempt at the same plan has made; anything else is cleared away."""
  path, text = building / "plan.json", json.dumps(plan, sort_keys=True).encode()
  try:
    same = path.read_bytes() == text
  except OSError:
    same = False
  if not same:
    shutil.rmtree(building, ignore_errors=True)
  shutil.rmtree(building / "temporary", ignore_errors=True)
  for name in ("cache", "entries", "temporary"):
    (building / name).mkdir(parents=True, exist_ok=True)
  write_whole(path, text, building / "temporary")


def _make_all(
  maker: PieceMaker,
  parts: Sequence[Callable[[], Iterable[Example]]],
  limits: PieceLimits,
  workers: int,
  progress: Callable[[CacheProgress], None],
) -> list[dict[str, Any]]:
  """The entries of all shards, in the order of the source."""
  made = _Entries(maker, progress)
  with PieceWorkers(maker, workers) as pool:
    for part, open_part in enumerate(parts):
      if (complete := _complete_part(maker, part, len(parts))) is not None:
        for number, entry in enumerate(complete):
          made.add((part, number), entry, made_before=True)
        continue
      number = -1
      for number, (examples, characters) in enumerate(_pieces(open_part(), maker, limits)):
        name = _name(part, number, len(parts))
        if entry := maker.made_before(name, len(examples)):
          made.add((part, number), entry, made_before=True)
        else:
          for ready in pool.make((part, number), name, examples, characters):
            made.add(*ready)
      made.close(part, number + 1)
    for ready in pool.finish():
      made.add(*ready)
  return made.in_order()


class _Entries:
  """The entries of shards as they come, in any order; notes which parts are complete."""

  def __init__(self, maker: PieceMaker, progress: Callable[[CacheProgress], None]):
    self._maker, self._progress = maker, progress
    self._entries: dict[tuple[int, int], dict[str, Any]] = {}
    self._done = CacheProgress(0, 0, 0, 0)
    self._missing: collections.Counter[int] = collections.Counter()  # of each part, below 0 until it is closed
    self._pieces: dict[int, int] = {}

  def add(self, place: tuple[int, int], entry: dict[str, Any], made_before: bool = False) -> None:
    self._entries[place] = entry
    counts = (entry["examples"], entry["tokens"])
    added = (*counts, *(counts if made_before else (0, 0)))
    self._done = CacheProgress(*(a + b for a, b in zip(dataclasses.astuple(self._done), added, strict=True)))
    self._progress(self._done)
    self._missing[place[0]] -= 1
    self._note(place[0])

  def close(self, part: int, pieces: int) -> None:
    """The part is read to its end; some of its pieces may still be with a worker."""
    self._pieces[part] = pieces
    self._missing[part] += pieces
    self._note(part)

  def in_order(self) -> list[dict[str, Any]]:
    return [self._entries[place] for place in sorted(self._entries)]

  def _note(self, part: int) -> None:
    if part in self._pieces and not self._missing[part]:
      path = self._maker.building / "entries" / f"part-{part:05d}"
      write_whole(path, str(self._pieces[part]).encode(), self._maker.building / "temporary")


def _pieces(examples: Iterable[Example], maker: PieceMaker, limits: PieceLimits) -> Iterator[tuple[list[Example], int]]:
  """Examples in pieces, and the characters of each."""
  piece: list[Example] = []
  characters = 0
  for example in examples:
    piece.append(maker.needed(example))
    texts = (example[name] if maker.encode is None else _text(example, name) for name in maker.features)
    characters += sum(map(len, texts))
    if len(piece) == limits.examples or characters >= limits.characters:
      yield piece, characters
      piece, characters = [], 0
  if piece:
    yield piece, characters


def _name(part: int, number: int, parts: int) -> str:
  return f"shard-{number:05d}" if parts == 1 else f"shard-{part:05d}-{number:05d}"


def _complete_part(maker: PieceMaker, part: int, parts: int) -> list[dict[str, Any]] | None:
  """The entries of a part that an earlier attempt has done wholly: its source need not be read again."""
  try:
    pieces = int((maker.building / "entries" / f"part-{part:05d}").read_text())
  except (OSError, ValueError):
    return None
  entries = [maker.made_before(_name(part, number, parts)) for number in range(pieces)]
  return None if None in entries else entries


def _finish(folder: Path, building: Path, plan: Mapping[str, Any], shards: list[dict[str, Any]]) -> None:
  totals = {count: sum(shard[count] for shard in shards) for count in ("examples", "tokens")}
  if not totals["tokens"]:
    description = plan["description"]
    raise UserError(f"task {description['task']!r} gave no text in split {description['split']!r}")
  made = building / "cache"
  manifest = {**plan, **totals, "shards": shards}
  write_whole(made / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode(), building / "temporary")
  wanted = {MANIFEST, *(f"{shard['name']}.{kind}" for shard in shards for kind in shard["files"])}
  for path in made.iterdir():
    if path.name not in wanted:
      path.unlink()
  if folder.exists():
    folder.rename(building / "replaced")
  made.rename(folder)
  shutil.rmtree(building, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> UserError:
  if error.errno in _NO_ROOM:
    place = _made_in(folder).parent
    free = shutil.disk_usage(place).free if place.exists() else 0
    return UserError(
      "there is no room left for the token cache",
      folder=folder,
      because=os.strerror(error.errno),
      free=f"{free / 1e9:.2f} GB",
      try_="make room and give the same command: it goes on where it stopped",
    )
  return UserError("the token cache could not be written", folder=folder, because=error.strerror or error)


def _text(example: Example, feature: str) -> str:
  value = example.get(feature)
  if not isinstance(value, str):
    raise UserError(f"an example has no text {feature!r}", found=", ".join(example), value=repr(value)[:100])
  return value
