"""Batches as a pure function of (seed, step), and the order they are read in.

`Batches` answers `batches[step]` with the batch of that step, whatever was asked before. Grain
reads ahead in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from t5like.data.cache import TokenCache
from t5like.data.layouts import Batch, padded
from t5like.data.rows import RowSource, read_examples
from t5like.objectives import Lengths, SpecialTokens


@dataclasses.dataclass(frozen=True)
class HostShare:
  """Which rows of every global batch this host makes: those of some of its equal parts."""

  held: tuple[int, ...] = (0,)
  parts: int = 1

  def rows(self, batch_size: int) -> np.ndarray:
    size = batch_size // self.parts
    return np.concatenate([np.arange(part * size, (part + 1) * size) for part in self.held])


@dataclasses.dataclass(frozen=True)
class Stage:
  """Some steps with one kind of rows and one batch size; `steps` None: all that follow."""

  source: RowSource
  batch_size: int
  steps: int | None = None


@dataclasses.dataclass(frozen=True)
class Batches:
  """The batches of a run: one stage, or several, such as BERT's 128 tokens and then 512."""

  stages: Sequence[Stage]
  share: HostShare = HostShare()

  def stage(self, step: int) -> tuple[Stage, int]:
    """The stage of a step, and how many rows of its source were used before it.

    Stages that go on with the same source (a batch that grows) go on in it.
    """
    used: dict[int, int] = {}
    for stage in self.stages:
      rows = used.get(id(stage.source), 0)
      if stage.steps is None or step < stage.steps:
        return stage, rows + step * stage.batch_size
      used[id(stage.source)] = rows + stage.steps * stage.batch_size
      step -= stage.steps
    raise IndexError("the last stage of a run goes on for ever")

  def __getitem__(self, step: int) -> Batch:
    stage, used = self.stage(int(step))
    return stage.source.rows(used + self.share.rows(stage.batch_size).astype(np.int64))


def evaluation_batches(
  cache: TokenCache, lengths: Lengths, special: SpecialTokens, batch_size: int, limit: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
  """Every example once, in order: its number [rows], inputs [rows, length], their lengths [rows], and targets.

  The last batch is filled up with copies of its first row, whose number is -1 and whose targets
  are all padding, so that they weigh nothing in a loss.
  """
  count = min(cache.examples, limit or cache.examples)
  for start in range(0, count, batch_size):
    rows = np.arange(start, start + batch_size)
    real = rows < count
    examples = read_examples(cache, np.where(real, rows, start), lengths, special)
    inputs, _ = padded(examples.inputs, lengths.inputs)
    targets, _ = padded(examples.targets, lengths.targets)
    yield np.where(real, rows, -1), inputs, examples.inputs.lengths, np.where(real[:, None], targets, 0)


def read_ahead(
  batches: Batches, first_step: int, last_step: int, threads: int = 1, processes: int = 0
) -> Iterator[Batch]:
  """The batches of steps first_step .. last_step - 1 in order, made in background threads, or none with 0.

  With `processes` they are made there, each by its own threads: for batches that cost more than one
  interpreter can give, as a process starts slowly and its batches are copied.
  """
  import grain  # loads jax, which those who only write a cache do not need
  from absl import flags

  if not threads:
    return (batches[step] for step in range(first_step, last_step))
  steps = grain.MapDataset.range(first_step, last_step).map(batches.__getitem__)
  ahead = steps.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(2, 2 * threads)))
  if processes:
    if not flags.FLAGS.is_parsed():
      flags.FLAGS.mark_as_parsed()  # Grain asks absl, whose flags nobody uses here
    ahead = ahead.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes, per_worker_buffer_size=2))
  return iter(ahead)
