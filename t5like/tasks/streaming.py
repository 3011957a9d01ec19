"""Streams a task or mixture through seqio, without a token cache.

The pipeline is the task's own, with the model's vocabulary instead of its default one. Open it only in a process that
can be killed at any time: when a pipeline calls back into Python, tf.data may hang on teardown.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.objectives import Masked, Objective, Pairs, Ragged
from t5like.tasks import objective_adapter
from t5like.tasks.caching import finished_tokens
from t5like.tasks.caching.cache_kind import Steps
from t5like.tasks.caching.text_pipeline import text_features, text_preprocessors
from t5like.tasks.missing_data import explain_data_errors, explain_pipeline_errors, reason
from t5like.tasks.mixtures import shares
from t5like.tasks.registry import check_split
from t5like.tasks.seqio_vocabularies import as_seqio
from t5like.tasks.sources import seedable
from t5like.vocabularies import Vocabulary

_MOST_EMPTY = 10_000  # examples
_SIZE, _SEGMENTS = "_size", "_segment_ids"  # suffixes of feature names; the second is seqio's


def with_vocabulary(
  found: seqio.Task | seqio.Mixture, split: str, vocabulary: Vocabulary, objective: Objective | None
) -> seqio.Task | seqio.Mixture:
  """Returns a copy that uses this vocabulary; `objective` is applied to a corpus."""
  if isinstance(found, seqio.Task):
    return _task_with_vocabulary(found, split, vocabulary, objective)
  tasks = {task.name: task for task in found.tasks}
  drawn = [share for share in shares(found, split) if share.rate > 0]
  members = [(_task_with_vocabulary(tasks[share.task], split, vocabulary, objective), share.rate) for share in drawn]
  return seqio.Mixture(found.name, members, sample_fn=found._sample_fn)


def _task_with_vocabulary(
  task: seqio.Task, split: str, vocabulary: Vocabulary, objective: Objective | None
) -> seqio.Task:
  with explain_data_errors(task):
    check_split(task, split)
    is_corpus = text_corpus(task, split)
    if is_corpus and objective is None:
      raise UserError(
        f"task {task.name!r} is a corpus and needs an objective",
        try_=f"--gin.TASK={task.name}_span_corruption, or --gin_file=objectives/span_corruption.gin",
      )
    if objective is not None and not is_corpus:
      raise UserError(
        f"task {task.name!r} defines its inputs and targets and takes no objective",
        try_="--gin_file=runs/finetune.gin",
      )
  if objective is None:
    return finished_tokens.for_model(task, vocabulary)
  corrupt = functools.partial(objective_adapter.corrupt, objective=objective)
  return seqio.Task(
    task.name,
    source=seedable(task.source),
    preprocessors=[*text_preprocessors(task), seqio.preprocessors.tokenize, corrupt],
    output_features=objective_adapter.features(objective, as_seqio(vocabulary)),
    shuffle_buffer_size=task.shuffle_buffer_size,
  )


def text_corpus(task: seqio.Task, split: str) -> bool:
  """Returns whether a task is plain text for an objective: only `targets`, and nothing but EOS after `tokenize`."""
  return Steps.of(task).is_plain and text_features(task, split) == ["targets"]


@dataclasses.dataclass(frozen=True)
class StreamBatch:
  """The texts of a batch; if packed, `row` is the row of each text."""

  texts: Pairs | Masked
  row: np.ndarray | None = None


class Stream:
  """Infinite batches of this host's shard of the data, shuffled within seqio's buffer.

  lengths: seqio's sequence_length; for an objective, the length of the inputs it produces.
  """

  def __init__(
    self,
    found: seqio.Task | seqio.Mixture,
    split: str,
    lengths: Mapping[str, int],
    rows: int,
    seed: int,
    objective: Objective | None = None,
    pack: bool = False,
    shard: tuple[int, int] = (0, 1),
  ):
    tf.config.set_visible_devices([], "GPU")  # TensorFlow would reserve all GPU memory
    self._name, self._pack, self._masked = found.name, pack, objective is not None and objective.makes == "masked"
    with explain_pipeline_errors(self._name):
      read = functools.partial(
        found.get_dataset,
        sequence_length=lengths,
        split=split,
        seed=seed,
        shard_info=seqio.ShardInfo(*shard),
        trim_output_features=objective is None,
        try_in_mem_cache=False,  # tf.data would save the cache with its state
      )
      dataset = read(shuffle=True, num_epochs=None)
      names = list(found.output_features)
      if objective is None:
        finished_tokens.check_features(self._name, dataset.element_spec)
        names = [name for name in ("inputs", "targets") if name in dataset.element_spec]
      packed = {name: length for name, length in lengths.items() if name in names}
      if pack:
        _check_packable(found.name, read(shuffle=False, num_epochs=1), list(packed))
      batch = _packed(dataset, packed) if pack else _padded(dataset, names)
      self._iterator = iter(batch(rows, drop_remainder=True).prefetch(tf.data.AUTOTUNE))

  def __iter__(self) -> Iterator[StreamBatch]:
    return self

  def __next__(self) -> StreamBatch:
    with explain_pipeline_errors(self._name):
      values = {name: tensor.numpy() for name, tensor in next(self._iterator).items()}
    return _unpacked(values) if self._pack else _unpadded(values, self._masked)

  def obstacle(self) -> str | None:
    """Returns why tf.data cannot save the state of this pipeline, or None. Call it after the first batch."""
    with tempfile.TemporaryDirectory() as folder:
      return self.save(Path(folder) / "state")

  def save(self, path: Path) -> str | None:
    """Saves the state of the pipeline including its buffers; returns the reason if tf.data cannot."""
    try:
      tf.train.Checkpoint(iterator=self._iterator).write(str(path))
    except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
      return reason(error)
    except tf.errors.OpError as error:
      raise UserError("cannot save the state of the stream", file=path, because=reason(error)) from None

  def restore(self, path: Path) -> None:
    """Resumes from a saved state; the stream must have been opened with the same arguments."""
    try:
      tf.train.Checkpoint(iterator=self._iterator).read(str(path)).assert_consumed()
    except (tf.errors.OpError, AssertionError) as error:
      raise UserError(
        "cannot read the saved state of the stream",
        folder=path.parent,
        because=reason(error),
        try_="remove this folder: the stream then starts over",
      ) from None


def _check_packable(task: str, dataset: tf.data.Dataset, names: list[str]) -> None:
  """Raises UserError if all examples would be dropped: an endless dataset then never has a next one."""
  count = 0
  for example in dataset.take(_MOST_EMPTY):
    if all(tf.size(example[name]) > 0 for name in names):
      return
    count += 1
  if count:
    raise UserError(
      f"task {task!r} cannot be packed: of its first {count:,} examples, all have empty {' or '.join(names)}",
      try_="--gin.PACK=False",
    )


def _padded(dataset: tf.data.Dataset, names: list[str]):
  """Pads one text per row. Sizes are kept, as 0 is a token in some vocabularies."""

  def sized(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    values = {name: tf.cast(example[name], tf.int32) for name in names}
    return values | {f"{name}{_SIZE}": tf.size(values[name]) for name in names if values[name].shape.rank}

  return dataset.map(sized, num_parallel_calls=tf.data.AUTOTUNE).padded_batch


def _unpadded(values: Mapping[str, np.ndarray], masked: bool) -> StreamBatch:
  def texts(name: str) -> Ragged:
    if name not in values:
      rows = len(values["targets"])
      return Ragged(np.zeros((rows, 0), np.int32), np.zeros(rows, np.int64))
    return Ragged(values[name], values[f"{name}{_SIZE}"].astype(np.int64))

  if not masked:
    return StreamBatch(Pairs(texts("inputs"), texts("targets")))
  parts = {name: values[name] for name in ("targets", "weights", "token_types")}
  return StreamBatch(Masked(texts("inputs"), **parts, labels=values.get("labels"), order=values.get("order")))


def _packed(dataset: tf.data.Dataset, lengths: Mapping[str, int]):
  """Packs with seqio. It treats 0 as padding, so ids are shifted up by one, and it numbers texts by their starts, so
  examples with an empty side are dropped."""

  def shift_ids(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: tf.cast(example[name], tf.int32) + 1 for name in lengths}

  def no_side_is_empty(example: Mapping[str, tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.size(text) > 0 for text in example.values()])

  dataset = dataset.map(shift_ids, num_parallel_calls=tf.data.AUTOTUNE).filter(no_side_is_empty)
  return seqio.utils.trim_and_pack_dataset(dataset, lengths).batch


def _unpacked(values: Mapping[str, np.ndarray]) -> StreamBatch:
  counts = values[f"targets{_SEGMENTS}"].max(axis=1)  # texts per row
  first = np.cumsum(counts) - counts

  def texts(name: str) -> Ragged:
    if name not in values:
      return Ragged(np.zeros((counts.sum(), 0), np.int32), np.zeros(counts.sum(), np.int64))
    segments = values[f"{name}{_SEGMENTS}"]
    real = segments > 0
    number = (first[:, None] + segments - 1)[real]
    return Ragged.of(values[name][real] - 1, np.bincount(number, minlength=counts.sum()))

  return StreamBatch(Pairs(texts("inputs"), texts("targets")), np.repeat(np.arange(len(counts)), counts))
