"""Repairs damaged shards of a token cache where they are, without building the others again."""

from __future__ import annotations

import collections
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5like import data
from t5like.data.cache import read_manifest
from t5like.data.cache_builder import part_of
from t5like.data.shards import block_sums, checksums
from t5like.errors import UserError, nearest
from t5like.experiments.cache_building import CacheSettings, TaskCacheBuilder, find, is_description_of
from t5like.files import storage
from t5like.tasks import mixtures, registry

if TYPE_CHECKING:
  import seqio

_READERS = 8
_REBUILD = "the same command with --force instead of --repair builds the complete cache"


def repair_token_cache(
  settings: CacheSettings, shards: Sequence[str] = (), report: Callable[[str], object] = print
) -> list[str]:
  """Rebuilds missing and damaged files, which are read to find them. Returns the names of repaired shards.

  Args:
    settings: those that the cache was built with.
    shards: names of shards to check; all if there are none. For a mixture, all shards of all its tasks are checked.
    report: called with messages.

  Raises:
    UserError: there is no such cache or shard, or what would be built differs from what the cache had.
  """
  found = find(settings)
  if not mixtures.is_mixture(found):
    return _repair(settings, found, shards, report)
  if shards:
    raise UserError(f"{settings.task!r} is a mixture: shards belong to its tasks", try_="--repair=all, or a task of it")
  members = [registry.find_task(s.task) for s in mixtures.shares(found, settings.split) if s.rate > 0]
  return [name for task in members for name in _repair(settings, task, (), report)]


def _repair(
  settings: CacheSettings, task: seqio.Task, shards: Sequence[str], report: Callable[[str], object]
) -> list[str]:
  job = TaskCacheBuilder(settings, report).job(task)
  with data.sole_builder(job.folder):
    manifest, _ = read_manifest(job.folder, _REBUILD)
    if not is_description_of(manifest["description"], job.plan["description"]):
      raise UserError("the task or its source has changed since its cache was built", folder=job.folder, try_=_REBUILD)
    damaged = _damaged(job.folder, _chosen(manifest, shards, job.folder))
    by_part = collections.defaultdict(list)
    for name in damaged:
      by_part[part_of(name)].append(name)
    for part, names in by_part.items():
      with tempfile.TemporaryDirectory() as scratch:
        for entry in job.shards_of(part, Path(scratch), only=names):
          _check_same(entry, damaged.pop(entry["name"]), job.folder)
          for kind in entry["files"]:
            name = f"{entry['name']}.{kind}"
            storage.write_atomic(job.folder / name, (Path(scratch) / "cache" / name).read_bytes())
          report(f"repaired {entry['name']} of {job.folder}")
    if damaged:
      raise UserError(f"the source no longer has the text of {next(iter(damaged))}", folder=job.folder, try_=_REBUILD)
  names = [name for part in by_part.values() for name in part]
  if not names:
    report(f"nothing to repair: {job.folder}")
  return names


def _chosen(manifest: Mapping[str, Any], shards: Sequence[str], folder: Path) -> list[Mapping[str, Any]]:
  entries = {entry["name"]: entry for entry in manifest["shards"]}
  for name in shards:
    if name not in entries:
      raise UserError(f"the token cache has no shard {name!r}", folder=folder, nearest=nearest(name, entries))
  return [entries[name] for name in shards or entries]


def _damaged(folder: Path, entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
  """Returns the entries of shards with a file that is missing or does not match its checksums."""

  def is_intact(entry: Mapping[str, Any]) -> bool:
    try:
      contents = {kind: (folder / f"{entry['name']}.{kind}").read_bytes() for kind in entry["files"]}
    except FileNotFoundError:
      return False
    return all(
      len(contents[kind]) == about["bytes"] and block_sums(contents[kind]) == checksums(about).tolist()
      for kind, about in entry["files"].items()
    )

  with ThreadPoolExecutor(_READERS, "check") as pool:
    return {e["name"]: e for e, intact in zip(entries, pool.map(is_intact, entries), strict=True) if not intact}


def _check_same(built: Mapping[str, Any], known: Mapping[str, Any], folder: Path) -> None:
  """Raises UserError if a shard that was built again is not the one that the manifest describes."""

  def content(entry: Mapping[str, Any]) -> list[Any]:
    files = {kind: (about["bytes"], checksums(about).tolist()) for kind, about in entry["files"].items()}
    return [entry["examples"], entry["tokens"], files]

  if content(built) != content(known):
    raise UserError(f"{known['name']} would differ from what the cache had", folder=folder, try_=_REBUILD)
