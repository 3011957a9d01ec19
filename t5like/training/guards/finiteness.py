"""What to do when a loss or gradient is not finite, and which batches a run has skipped for it.

The step itself has left parameters and optimizer state as they were (see step.py). What follows is a policy:

  stop      end the run, naming the step and keeping its batch for study
  skip      go on with the next batch, and count
  rollback  return to the last checkpoint, and go on with the batches after the one that failed: what a spike
            did to the parameters before it became infinite is undone too
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from t5like.errors import RunError, UserError
from t5like.files import storage
from t5like.training.records.model_dir import write_text

POLICIES = ("stop", "skip", "rollback")
FILE = "skipped_batches.json"
# A run that skips this often without a good step between, or returns this often to one checkpoint, is sick.
MOST_SKIPS = 20
MOST_ROLLBACKS = 3


class NotFinite(Exception):
  """Raised out of the loop at a step that calls for more than skipping."""

  def __init__(self, step: int):
    super().__init__(f"loss or gradients are not finite at step {step}")
    self.step = step


class FiniteCheck:
  """Sees every step, in order and on all hosts alike."""

  def __init__(self, policy: str = "stop"):
    self._policy = policy
    self._in_a_row = 0

  def see(self, step: int, finite: bool) -> None:
    self._in_a_row = 0 if finite else self._in_a_row + 1
    if finite or (self._policy == "skip" and self._in_a_row < MOST_SKIPS):
      return
    raise NotFinite(step)


@dataclasses.dataclass(frozen=True)
class SkippedBatches:
  """The windows of batches that rollbacks left out: after step `s` the next `n` batches, for each (s, n).

  Kept in the model directory: a batch stays a function of (seed, step) and this list, also after a restart.
  """

  windows: tuple[tuple[int, int], ...] = ()

  @classmethod
  def read(cls, model_dir: Path) -> SkippedBatches:
    path = model_dir / FILE
    if not path.is_file():
      return cls()
    try:
      return cls(tuple((int(after), int(count)) for after, count in storage.read_json(path, list)))
    except (ValueError, TypeError) as error:
      raise UserError(
        "the list of batches that this run left out cannot be read",
        file=path,
        because=error,
        expected="pairs of a step and a number of batches, such as [[120, 3]]",
        try_="bring it back from a copy; without it the run goes on with other batches",
      ) from None

  def write(self, model_dir: Path) -> None:
    write_text(model_dir / FILE, json.dumps(self.windows) + "\n")

  def batch_of(self, step: int) -> int:
    """The number of the batch that `step` trains on, both counted from 0."""
    return step + sum(count for after, count in self.windows if after <= step)

  def skip(self, after: int, failed: int) -> SkippedBatches:
    """Leaves out the batches of the steps `after` + 1 .. `failed` (counted from 1, as a state's step is)."""
    if sum(earlier == after for earlier, _ in self.windows) >= MOST_ROLLBACKS:
      raise RunError(
        f"loss or gradients are not finite again, after {MOST_ROLLBACKS} returns to step {after:,}",
        failed=f"step {failed:,}",
        try_="a lower learning rate, clip_norm of the optimizer, or float32: it is not the data",
      )
    return SkippedBatches((*self.windows, (after, failed - after)))


@dataclasses.dataclass(frozen=True)
class WithoutSkipped:
  """Batches by step, without those that were skipped."""

  batches: Any  # batches[number]
  skipped: SkippedBatches

  def __getitem__(self, step: int) -> Any:
    return self.batches[self.skipped.batch_of(int(step))]
