"""A task or mixture read through seqio itself, without a token cache.

The pipeline is the task's own, with the vocabulary of the model in place of its default one. Only open it in a
process that may be ended at once: where a pipeline calls back into Python, tf.data may wait for ever on taking it down.
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
from t5like.tasks.missing_data import data_explained, pipeline_explained, reason
from t5like.tasks.mixtures import shares
from t5like.tasks.registry import check_split
from t5like.tasks.seqio_vocabularies import as_seqio
from t5like.tasks.sources import seedable
from t5like.vocabularies import Vocabulary

_SIZE, _SEGMENTS = "_size", "_segment_ids"  # behind the name of a feature; the second is seqio's


def with_vocabulary(
  found: seqio.Task | seqio.Mixture, split: str, vocabulary: Vocabulary, objective: Objective | None
) -> seqio.Task | seqio.Mixture:
  """A copy that makes this vocabulary's ids; `objective` says what becomes of a corpus."""
  if isinstance(found, seqio.Task):
    return _task_with_vocabulary(found, split, vocabulary, objective)
  tasks = {task.name: task for task in found.tasks}
  drawn = [share for share in shares(found, split) if share.rate > 0]
  members = [(_task_with_vocabulary(tasks[share.task], split, vocabulary, objective), share.rate) for share in drawn]
  return seqio.Mixture(found.name, members, sample_fn=found._sample_fn)


def _task_with_vocabulary(
  task: seqio.Task, split: str, vocabulary: Vocabulary, objective: Objective | None
) -> seqio.Task:
  with data_explained(task):
    check_split(task, split)
    is_corpus = text_corpus(task, split)
    if is_corpus and objective is None:
      raise UserError(
        f"task {task.name!r} is a corpus: it needs an objective",
        try_=f"--gin.TASK={task.name}_span_corruption, or --gin_file=objectives/span_corruption.gin",
      )
    if objective is not None and not is_corpus:
      raise UserError(
        f"task {task.name!r} has inputs and targets of its own: it takes no objective",
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
  """Whether a task is running text, which takes an objective: nothing but `targets` that `tokenize` makes tokens of."""
  return Steps.of(task).is_plain and text_features(task, split) == ["targets"]


@dataclasses.dataclass(frozen=True)
class Streamed:
  """What a batch is made of; `row` has the row of each text where they are packed."""

  texts: Pairs | Masked
  row: np.ndarray | None = None


class Stream:
  """Batches without end, shuffled within seqio's buffer and of this host's share of the data.

  lengths: what seqio is to cut features at, for an objective the inputs that it is to make.
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
    tf.config.set_visible_devices([], "GPU")  # TensorFlow would take all of their memory
    self._name, self._pack, self._masked = found.name, pack, objective is not None and objective.makes == "masked"
    with pipeline_explained(self._name):
      dataset = found.get_dataset(
        sequence_length=lengths,
        split=split,
        shuffle=True,
        seed=seed,
        shard_info=seqio.ShardInfo(*shard),
        num_epochs=None,
        trim_output_features=objective is None,
        try_in_mem_cache=False,  # tf.data would save all of it with its place
      )
      names = list(found.output_features)
      if objective is None:
        finished_tokens.check_features(self._name, dataset.element_spec)
        names = [name for name in ("inputs", "targets") if name in dataset.element_spec]
      packed = {name: length for name, length in lengths.items() if name in names}
      batch = _packed(dataset, packed) if pack else _padded(dataset, names)
      self._iterator = iter(batch(rows, drop_remainder=True).prefetch(tf.data.AUTOTUNE))

  def __iter__(self) -> Iterator[Streamed]:
    return self

  def __next__(self) -> Streamed:
    with pipeline_explained(self._name):
      values = {name: tensor.numpy() for name, tensor in next(self._iterator).items()}
    return _unpacked(values) if self._pack else _unpadded(values, self._masked)

  def obstacle(self) -> str | None:
    """Why tf.data cannot save the place of this pipeline, None where it can; it knows from the first batch on."""
    with tempfile.TemporaryDirectory() as folder:
      return self.save(Path(folder) / "state")

  def save(self, path: Path) -> str | None:
    """Saves the place of the pipeline with all that its buffers hold; says why where that cannot be."""
    try:
      tf.train.Checkpoint(iterator=self._iterator).write(str(path))
    except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
      return reason(error)
    except tf.errors.OpError as error:
      raise UserError("the place of the stream cannot be saved", file=path, because=reason(error)) from None

  def restore(self, path: Path) -> None:
    """Goes on where `save` was called; the stream must have been opened with the same arguments."""
    try:
      tf.train.Checkpoint(iterator=self._iterator).read(str(path)).assert_consumed()
    except (tf.errors.OpError, AssertionError) as error:
      raise UserError(
        "the saved place of the stream cannot be read",
        folder=path.parent,
        because=reason(error),
        try_="remove this folder: the stream then starts over",
      ) from None


def _padded(dataset: tf.data.Dataset, names: list[str]):
  """One text a row. Sizes go along, as 0 is a word of some vocabularies."""

  def sized(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    values = {name: tf.cast(example[name], tf.int32) for name in names}
    return values | {f"{name}{_SIZE}": tf.size(values[name]) for name in names if values[name].shape.rank}

  return dataset.map(sized, num_parallel_calls=tf.data.AUTOTUNE).padded_batch


def _unpadded(values: Mapping[str, np.ndarray], masked: bool) -> Streamed:
  def texts(name: str) -> Ragged:
    if name not in values:
      rows = len(values["targets"])
      return Ragged(np.zeros((rows, 0), np.int32), np.zeros(rows, np.int64))
    return Ragged(values[name], values[f"{name}{_SIZE}"].astype(np.int64))

  if not masked:
    return Streamed(Pairs(texts("inputs"), texts("targets")))
  parts = {name: values[name] for name in ("targets", "weights", "token_types")}
  return Streamed(Masked(texts("inputs"), **parts, labels=values.get("labels")))


def _packed(dataset: tf.data.Dataset, lengths: Mapping[str, int]):
  """seqio's own packing. It takes 0 for padding, so ids are moved up by one on the way, and numbers texts by their
  beginnings, so examples with an empty side are left out."""

  def moved(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: tf.cast(example[name], tf.int32) + 1 for name in lengths}

  def whole(example: Mapping[str, tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.size(text) > 0 for text in example.values()])

  dataset = dataset.map(moved, num_parallel_calls=tf.data.AUTOTUNE).filter(whole)
  return seqio.utils.trim_and_pack_dataset(dataset, lengths).batch


def _unpacked(values: Mapping[str, np.ndarray]) -> Streamed:
  counts = values[f"inputs{_SEGMENTS}"].max(axis=1)  # texts of each row
  first = np.cumsum(counts) - counts

  def texts(name: str) -> Ragged:
    segments = values[f"{name}{_SEGMENTS}"]
    real = segments > 0
    number = (first[:, None] + segments - 1)[real]
    return Ragged.of(values[name][real] - 1, np.bincount(number, minlength=counts.sum()))

  return Streamed(Pairs(texts("inputs"), texts("targets")), np.repeat(np.arange(len(counts)), counts))
