"""Batches as a pure function of (seed, step), and the order they are read in.

`Batches` answers `batches[step]` with the batch of that step, whatever was asked before. Grain
reads ahead in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from t5like.data.layouts import Batch
from t5like.data.rows import RowSource


@dataclasses.dataclass(frozen=True)
class HostShare:
  """Which rows of every global batch this host makes: those of some of its equal parts."""

  held: tuple[int, ...] = (0,)
  parts: int = 1

  def rows(self, batch_size: int) -> np.ndarray:
    size = batch_size // self.parts
    return np.concatenate([np.arange(part * size, (part + 1) * size) for part in self.held])


@dataclasses.dataclass(frozen=True)
class PhaseRows:
  """Some steps with one kind of rows and one batch size; `steps` None: all that follow."""

  source: RowSource
  batch_size: int
  steps: int | None = None


@dataclasses.dataclass(frozen=True)
class Batches:
  """The batches of a run: one phase, or several, such as BERT's 128 tokens and then 512."""

  phases: Sequence[PhaseRows]
  share: HostShare = HostShare()

  def phase(self, step: int) -> tuple[PhaseRows, int]:
    """The phase of a step, and how many rows of its source were used before it.

    Stages that go on with the same source (a batch that grows) go on in it.
    """
    used: dict[int, int] = {}
    for phase in self.phases:
      rows = used.get(id(phase.source), 0)
      if phase.steps is None or step < phase.steps:
        return phase, rows + step * phase.batch_size
      used[id(phase.source)] = rows + phase.steps * phase.batch_size
      step -= phase.steps
    raise IndexError("the last phase of a run goes on for ever")

  def __getitem__(self, step: int) -> Batch:
    phase, used = self.phase(int(step))
    return phase.source.rows(used + self.share.rows(phase.batch_size).astype(np.int64))


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
