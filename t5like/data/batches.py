"""Batches as a pure function of (seed, step).

`batches[step]` is random access: it does not depend on earlier reads. Grain prefetches from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from t5like.data.layouts import Batch
from t5like.data.rows import RowSource


@dataclasses.dataclass(frozen=True)
class HostShare:
  """The rows of every global batch that this host reads: parts `held` out of `parts` equal ones."""

  held: tuple[int, ...] = (0,)
  parts: int = 1

  def rows(self, batch_size: int) -> np.ndarray:
    size = batch_size // self.parts
    return np.concatenate([np.arange(part * size, (part + 1) * size) for part in self.held])


@dataclasses.dataclass(frozen=True)
class PhaseRows:
  """A phase with one row source and one batch size; it lasts `steps` steps, or to the end of the run if None."""

  source: RowSource
  batch_size: int
  steps: int | None = None
  # Lengths, ascending: a batch of labeled rows is padded to the first that holds its longest row. (): all are equal.
  buckets: tuple[int, ...] = ()

  def lengths(self, used: int, steps: int) -> np.ndarray:
    """Returns the lengths of the next `steps` batches on all hosts, after `used` rows: [steps]."""
    rows = self.source.longest(used + np.arange(steps * self.batch_size)).reshape(steps, -1)
    return np.array(self.buckets)[np.searchsorted(self.buckets, rows.max(axis=1))]


@dataclasses.dataclass(frozen=True)
class Batches:
  """The batches of a run, in one or more phases (such as BERT's 128 tokens, then 512)."""

  phases: Sequence[PhaseRows]
  share: HostShare = HostShare()

  def plan(self) -> list[int]:
    """Plans the rows of every phase and returns how many an epoch has; raises UserError if they are too short."""
    return [phase.source.rows_per_epoch for phase in self.phases]

  def phase(self, step: int) -> tuple[PhaseRows, int]:
    """Returns the phase of a step, and the number of rows of its source consumed before that step.

    Phases that share a source (such as a batch size ramp) continue where the previous phase stopped.
    """
    used: dict[int, int] = {}
    for phase in self.phases:
      rows = used.get(id(phase.source), 0)
      if phase.steps is None or step < phase.steps:
        return phase, rows + step * phase.batch_size
      used[id(phase.source)] = rows + phase.steps * phase.batch_size
      step -= phase.steps
    raise IndexError("step is past the last phase")

  def __getitem__(self, step: int) -> Batch:
    phase, used = self.phase(int(step))
    batch = phase.source.rows(used + self.share.rows(phase.batch_size).astype(np.int64))
    if not phase.buckets:
      return batch
    (length,) = phase.lengths(used, 1)
    return {name: x[..., :length] if name.startswith("encoder_") else x for name, x in batch.items()}


def read_ahead(
  batches: Batches, first_step: int, last_step: int, threads: int = 1, processes: int = 0
) -> Iterator[Batch]:
  """Yields the batches of steps [first_step, last_step) in order, prefetched in background threads.

  Args:
    threads: number of prefetching threads (of each process); 0 reads in the caller's thread.
    processes: number of worker processes. Use them only if one interpreter is too slow: a process takes long to
      start, and its batches are copied.
  """
  import grain  # imports jax, which writing a cache does not need
  from absl import flags

  if not threads:
    return (batches[step] for step in range(first_step, last_step))
  steps = grain.MapDataset.range(first_step, last_step).map(batches.__getitem__)
  ahead = steps.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(2, 2 * threads)))
  if processes:
    if not flags.FLAGS.is_parsed():
      flags.FLAGS.mark_as_parsed()  # Grain reads absl flags, which t5like does not use
    ahead = ahead.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes, per_worker_buffer_size=2))
  return iter(ahead)
