"""Which checkpoints to evaluate: some, all, or each as a training run writes it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t5like.errors import UserError
from t5like.files import storage
from t5like.parallel.process_zero import first_process_decides
from t5like.training.checkpoints.folders import FOLDER, checkpoint_steps
from t5like.training.records.goodput import FILE, read_attempts

FINISHED = "finished"
_WAIT, _STOP, _END = -1, -2, -3


def chosen_steps(model_dir: Path, given: str) -> list[int]:
  """'all', or steps such as '1000,2000'; those that are there, in order."""
  there = checkpoint_steps(model_dir)
  if not there:
    raise UserError("no checkpoint here", looked=model_dir / FOLDER)
  if given == "all":
    return there
  try:
    wanted = sorted({int(step) for step in given.replace("_", "").split(",")})
  except ValueError:
    raise UserError(f"--steps={given} cannot work", expected="all, or steps such as 1000,2000") from None
  if missing := [step for step in wanted if step not in there]:
    raise UserError(
      f"no checkpoint of step {', '.join(map(str, missing))}", looked=model_dir / FOLDER,
      known=", ".join(map(str, there)),
    )  # fmt: skip
  return wanted


def has_finished(model_dir: Path) -> bool:
  """Whether the run's newest attempt says that it reached its end."""
  attempts = read_attempts(model_dir / FILE)
  return bool(attempts) and attempts[-1]["ended"] == FINISHED


@dataclasses.dataclass
class Follower:
  """The checkpoints of a directory as they come, oldest first, each once; to be used by all processes alike.

  A checkpoint that is gone before its turn is passed over. It ends when the run has finished and nothing is left, or
  when `stopped` says so.
  """

  model_dir: Path
  stopped: Callable[[], bool] = lambda: False
  poll: float = 5.0  # seconds
  waiting: Callable[[], None] = lambda: None  # told when nothing is there to do

  def __iter__(self) -> Iterator[int]:
    done: set[int] = set()
    while True:
      answer = first_process_decides(lambda: self._next(done))
      if answer >= 0:
        done.add(answer)
        yield answer
      elif answer == _WAIT:
        self.waiting()
      else:
        return

  def _next(self, done: set[int]) -> int:
    """The next step, or what to do without one. Waits a little itself, so that other processes need not ask often."""
    deadline = time.monotonic() + self.poll
    while True:
      finished = has_finished(self.model_dir)  # looked at first: what the run wrote at its end is seen below
      left = [step for step in checkpoint_steps(self.model_dir) if step not in done]
      if self.stopped():
        return _STOP
      if left:
        return left[0]
      if finished:
        return _END
      if time.monotonic() >= deadline:
        return _WAIT
      time.sleep(self.poll if storage.is_remote(self.model_dir) else min(0.2, self.poll))
