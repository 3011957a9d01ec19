"""Policies for a loss or gradient that is not finite, and the batches that a run has skipped because of them.

The step itself leaves parameters and optimizer state unchanged (see step.py). The policies:

  stop      end the run with the number of the step and save its batch for inspection
  skip      continue with the next batch and count the step
  rollback  return to the last checkpoint and continue after the failed batch: this also undoes what a spike did to the
            parameters before it became infinite
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from t5like.errors import RunError, UserError
from t5like.files import storage

POLICIES = ("stop", "skip", "rollback")
FILE = "skipped_batches.json"
# Limits on consecutive skipped steps, and on rollbacks to the same checkpoint.
MOST_SKIPS = 20
MOST_ROLLBACKS = 3


class NotFinite(Exception):
  """Raised by the loop at a step that is not merely skipped."""

  def __init__(self, step: int):
    super().__init__(f"loss or gradients are not finite at step {step}")
    self.step = step


class FiniteCheck:
  """Checks every step, in order and identically on all hosts."""

  def __init__(self, policy: str = "stop"):
    self._policy = policy
    self._in_a_row = 0

  def check(self, step: int, finite: bool) -> None:
    self._in_a_row = 0 if finite else self._in_a_row + 1
    if finite or (self._policy == "skip" and self._in_a_row < MOST_SKIPS):
      return
    raise NotFinite(step)


@dataclasses.dataclass(frozen=True)
class SkippedBatches:
  """The windows of batches that rollbacks skipped: for each (s, n), the n batches after step s.

  Stored in the model directory, so that a batch remains a function of (seed, step) and this list after a restart.
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
        "the list of batches that this run skipped cannot be read",
        file=path,
        because=error,
        expected="pairs of a step and a number of batches, such as [[120, 3]]",
        try_="restore it from a backup; without it the run continues with other batches",
      ) from None

  def write(self, model_dir: Path) -> None:
    storage.write_atomic(model_dir / FILE, json.dumps(self.windows) + "\n")

  def batch_index(self, step: int) -> int:
    """Returns the index of the batch that `step` trains on, both counted from 0."""
    return step + sum(count for after, count in self.windows if after <= step)

  def skip(self, after: int, failed: int) -> SkippedBatches:
    """Returns the list with the batches of steps `after` + 1 to `failed` (counted from 1, like state.step) added."""
    if sum(earlier == after for earlier, _ in self.windows) >= MOST_ROLLBACKS:
      raise RunError(
        f"loss or gradients are still not finite after {MOST_ROLLBACKS} rollbacks to step {after:,}",
        failed=f"step {failed:,}",
        try_="a lower learning rate, clip_norm of the optimizer, or float32: the data is not the cause",
      )
    return SkippedBatches((*self.windows, (after, failed - after)))


@dataclasses.dataclass(frozen=True)
class UnskippedBatches:
  """Batches by step, without the skipped ones."""

  batches: Any  # batches[index]
  skipped: SkippedBatches

  def __getitem__(self, step: int) -> Any:
    return self.batches[self.skipped.batch_index(int(step))]
