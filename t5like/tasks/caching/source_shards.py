"""A task in parts, by the files of its source: a token cache that is half built then need not read all of it again."""

from __future__ import annotations

import copy
import os

import seqio
import tensorflow as tf

# Smaller parts cost more to open than they save.
_PART_BYTES = 1 << 25


class _OnePart(seqio.DataSource):
  """Some of the shards of a source."""

  def __init__(self, source: seqio.DataSource, part: seqio.ShardInfo):
    self._whole, self._part = source, part
    super().__init__(splits=source.splits)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    return False

  def list_shards(self, split: str) -> list[str]:
    return list(self._whole.list_shards(split))[self._part.index :: self._part.num_shards]

  def get_dataset(
    self, split: str = "train", shuffle: bool = False, seed: int | None = None, **unused
  ) -> tf.data.Dataset:
    return self._whole.get_dataset(split, shuffle=shuffle, seed=seed, shard_info=self._part)


def parts_of(task: seqio.Task, split: str) -> list[seqio.Task]:
  """The task for each part of its source; one part where the source is small or cannot be parted.

  How many depends on the files alone. seqio's own offline cache runs preprocessors shard by shard too.
  """
  count = _parts(task.source, split)
  if count == 1:
    return [task]
  parts = []
  for index in range(count):
    part = copy.copy(task)
    part._source = _OnePart(task.source, seqio.ShardInfo(index=index, num_shards=count))
    parts.append(part)
  return parts


def _parts(source: seqio.DataSource, split: str) -> int:
  if not isinstance(source, seqio.FileDataSource | seqio.TfdsDataSource) or source.supports_arbitrary_sharding:
    return 1
  files = list(source.list_shards(split))
  if not all(os.path.isfile(file) for file in files):
    return len(files)
  return max(1, min(len(files), sum(map(os.path.getsize, files)) // _PART_BYTES))
