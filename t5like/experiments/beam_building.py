"""Builds a token cache with Apache Beam: on this machine, or on many, for example with Dataflow.

Beam distributes the parts of the source. A worker cuts its part into the pieces that the local builder would make,
writes their shards, then the entries of the part; the manifest comes last, from the entries of all parts. So the cache
is the same to the byte as one that is built on one machine. A part that Beam runs twice writes the same files twice; a
part that was complete when a build was stopped is not built again.

    <folder>.building/plan.json         what is built: another plan starts over
    <folder>.building/parts/00000.json  the entries of a complete part
    <folder>.building/cache/            its shards, moved to <folder> at the end (on a store: in <folder>)
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pickle
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from t5like.data.cache_builder import DEFAULT_LIMITS, manifest_of
from t5like.data.mirror import MANIFEST
from t5like.errors import UserError
from t5like.experiments.cache_building import CacheJob, CacheSettings, TaskCacheBuilder, find
from t5like.files import data_card, storage
from t5like.tasks import registry
from t5like.tasks.quiet_start import load_seqio

_READERS = 32  # of the entries of parts, of which there may be a hundred thousand


def build_with_beam(settings: CacheSettings, task: str, job: CacheJob) -> None:
  """Builds the cache of a task with the runner of `settings.beam_options`."""
  try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
  except ImportError:
    raise UserError("--beam_options requires Apache Beam", try_="pip install 't5like[beam]'") from None
  recipe = start_build(settings, task, job)
  try:
    with beam.Pipeline(options=PipelineOptions(list(settings.beam_options))) as pipeline:
      numbers = pipeline | beam.Create(range(len(job.parts))) | beam.Reshuffle()
      numbers | beam.Map(functools.partial(build_part, recipe))
  except Exception as error:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    raise UserError(
      "the Beam pipeline failed",
      because=reason[0][:500],
      folder=job.folder,
      try_="the same command again: parts that are complete are kept",
    ) from error
  finish_build(job)


def start_build(settings: CacheSettings, task: str, job: CacheJob) -> bytes:
  """Prepares a build and returns what a worker needs to know; workers register the task again."""
  _Places.of(job.folder).start(_plan_text(job))
  return pickle.dumps((settings, task))


def _plan_text(job: CacheJob) -> str:
  return json.dumps({**job.plan, "parts": len(job.parts), "limits": dataclasses.asdict(DEFAULT_LIMITS)}, sort_keys=True)


def finish_build(job: CacheJob) -> None:
  """Writes the manifest when all parts are complete."""
  _Places.of(job.folder).finish(job)


def build_part(recipe: bytes, part: int) -> int:
  """Builds the shards of one part of the source; runs on a worker. Returns the part's number."""
  job = _job(recipe)
  places = _Places.of(job.folder)
  if not places.is_planned(_plan_text(job)):
    raise UserError(
      "a worker would build something else than was planned",
      folder=job.folder,
      expected="the same version of t5like, task and source files on all machines, and a folder that all of them see",
    )
  if places.entries(part) is None:
    entries = []
    with tempfile.TemporaryDirectory() as scratch:
      hashes = []
      for entry in job.shards_of(part, Path(scratch)):
        places.add(Path(scratch) / "cache", entry)
        hashes.append((Path(scratch) / "hashes" / entry["name"]).read_bytes())
        entries.append(entry)
    storage.write_atomic(places.hashes(part), b"".join(hashes))
    storage.write_atomic(places.part(part), json.dumps(entries))
  return part


@functools.lru_cache(maxsize=1)
def _job(recipe: bytes) -> CacheJob:
  """Returns the job of a cache in a worker, which may have served another pipeline before."""
  settings, task = pickle.loads(recipe)  # written by build_with_beam
  load_seqio()
  find(settings)
  return TaskCacheBuilder(settings).job(registry.find_task(task))


@dataclasses.dataclass(frozen=True)
class _Places:
  """Where the files of a build are."""

  folder: Path
  building: Path
  cache: Path  # shards

  @classmethod
  def of(cls, folder: Path) -> _Places:
    building = folder.with_name(f"{folder.name}.building")
    return cls(folder, building, folder if storage.is_remote(folder) else building / "cache")

  def part(self, number: int) -> Path:
    return self.building / "parts" / f"{number:05d}.json"

  def hashes(self, number: int) -> Path:
    return self.building / "parts" / f"{number:05d}.hashes"

  def is_planned(self, text: str) -> bool:
    """Returns whether this is what is being built."""
    path = self.building / "plan.json"
    return path.is_file() and path.read_text(encoding="utf-8") == text

  def start(self, text: str) -> None:
    """Keeps the parts of an earlier attempt at the same plan; removes anything else."""
    if not self.is_planned(text):
      storage.remove_tree(self.building, ignore_errors=True)
    if storage.is_remote(self.folder):
      (self.folder / MANIFEST).unlink(missing_ok=True)  # its shards will be replaced
    for folder in (self.building / "parts", self.cache):
      folder.mkdir(parents=True, exist_ok=True)
    storage.write_atomic(self.building / "plan.json", text)

  def entries(self, number: int) -> list[dict[str, Any]] | None:
    """Returns the entries of a part; None if it is not complete."""
    return self._entries(number, lambda name: (self.cache / name).stat().st_size)

  def _entries(self, number: int, size_of: Callable[[str], int | None]) -> list[dict[str, Any]] | None:
    try:
      entries = json.loads(self.part(number).read_bytes())
      files = [(f"{e['name']}.{kind}", about) for e in entries for kind, about in e["files"].items()]
      return entries if all(size_of(name) == about["bytes"] for name, about in files) else None
    except (OSError, ValueError):
      return None

  def add(self, local: Path, entry: dict[str, Any]) -> None:
    """Moves the files of a shard from a worker's disk to the cache."""
    for kind in entry["files"]:
      path = local / f"{entry['name']}.{kind}"
      storage.write_atomic(self.cache / path.name, path.read_bytes())
      path.unlink()

  def finish(self, job: CacheJob) -> None:
    """Writes the data card, then the manifest, which makes the shards a cache; removes files of an earlier one."""
    numbers = range(len(job.parts))
    present = {name: about["size"] for name, about in storage.files_in(self.cache).items()}
    with ThreadPoolExecutor(_READERS, "parts") as pool:
      by_part = list(pool.map(lambda number: self._entries(number, present.get), numbers))
      missing = [number for number, entries in enumerate(by_part) if entries is None]
      if missing:
        what = f"{len(missing)} of {len(numbers)} parts are not complete"
        raise UserError(what, first=missing[0], folder=self.building)
      shards = [entry for entries in by_part for entry in entries]
      hashes = pool.map(lambda number: data_card.read_hashes(self.hashes(number)), numbers)
      data_card.write_cache_card(self.cache, job.plan, shards, hashes, job.origins())
    storage.write_atomic(self.cache / MANIFEST, manifest_of(job.plan, shards))
    expected = {MANIFEST, *data_card.FILES, *(f"{s['name']}.{kind}" for s in shards for kind in s["files"])}
    for name in present.keys() - expected:
      (self.cache / name).unlink(missing_ok=True)
    if not storage.is_remote(self.folder):
      if self.folder.exists():
        storage.remove_tree(self.building / "replaced", ignore_errors=True)  # of an attempt that was killed here
        self.folder.rename(self.building / "replaced")
      self.cache.rename(self.folder)
    storage.remove_tree(self.building, ignore_errors=True)
