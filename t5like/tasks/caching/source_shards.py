"""Splits a task by the files of its source, so that an interrupted cache build does not start over."""

from __future__ import annotations

import copy
import os

import seqio
import tensorflow as tf

from t5like.tasks.caching.cache_kind import Steps, whole_dataset_step

# Smaller parts cost more to open than they save on a resume.
_PART_BYTES = 1 << 25


class _ShardSubset(seqio.DataSource):
  """Every num_shards-th shard of a source."""

  def __init__(self, source: seqio.DataSource, part: seqio.ShardInfo):
    self._full, self._part = source, part
    super().__init__(splits=source.splits)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    return False

  def list_shards(self, split: str) -> list[str]:
    return list(self._full.list_shards(split))[self._part.index :: self._part.num_shards]

  def get_dataset(
    self, split: str = "train", shuffle: bool = False, seed: int | None = None, **unused
  ) -> tf.data.Dataset:
    return self._full.get_dataset(split, shuffle=shuffle, seed=seed, shard_info=self._part)


def split_by_shards(task: seqio.Task, split: str) -> list[seqio.Task]:
  """Returns one task per part of the source; a single one if the source is small or cannot be split.

  The number of parts depends only on the files. Not for a task that must stay whole: see `why_whole`.
  """
  count = _parts(task.source, split)
  if count == 1:
    return [task]
  parts = []
  for index in range(count):
    part = copy.copy(task)
    part._source = _ShardSubset(task.source, seqio.ShardInfo(index=index, num_shards=count))
    parts.append(part)
  return parts


def why_whole(task: seqio.Task, split: str) -> str | None:
  """Returns the step before `tokenize` for which a source that has parts must stay whole, or None."""
  return whole_dataset_step(task, split, Steps.of(task).before) if _parts(task.source, split) > 1 else None


def _parts(source: seqio.DataSource, split: str) -> int:
  if not isinstance(source, seqio.FileDataSource | seqio.TfdsDataSource) or source.supports_arbitrary_sharding:
    return 1
  files = list(source.list_shards(split))
  if not all(os.path.isfile(file) for file in files):
    return len(files)
  return max(1, min(len(files), sum(map(os.path.getsize, files)) // _PART_BYTES))
