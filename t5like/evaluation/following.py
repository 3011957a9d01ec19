"""Which checkpoints to evaluate: some, all, or each as a training run writes it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from t5like.console import say
from t5like.errors import UserError
from t5like.files import storage
from t5like.inference import Model
from t5like.parallel.process_zero import run_on_process_zero, true_on_all_processes
from t5like.training.checkpoints.folders import FOLDER, checkpoint_steps, checkpoints_folder
from t5like.training.records.goodput import FILE, read_attempts
from t5like.training.records.model_dir import CONFIG

Stopped = Callable[[], bool]
FINISHED = "finished"
NEVER: Stopped = lambda: False  # noqa: E731
_WAIT, _STOP, _END = -1, -2, -3


@dataclasses.dataclass(frozen=True)
class CheckpointSelection:
  """Which checkpoints of a model are evaluated: one, several, or each as training writes it."""

  step: int | None = None  # None: the newest
  steps: str | None = None  # "all", or "1000,2000"
  follow: bool = False

  @property
  def several(self) -> bool:
    return bool(self.follow or self.steps)

  def of(self, model: Model, stopped: Stopped = NEVER) -> Iterable[int | None]:
    """The steps in their order; None for a model without steps. To be iterated by all processes alike."""
    if not self.several:
      return [model.step(self.step)]
    if model.experiment is None:
      raise UserError(f"{model.folder} is a Hugging Face folder: it has no steps")
    return Follower(model.folder, stopped) if self.follow else chosen_steps(model.folder, self.steps)


def wait_for_model(model_dir: str, stopped: Stopped) -> None:
  """Waits for the first checkpoint of a run that has just been started."""
  storage.check_reachable(model_dir, "--model_dir")
  folder, announced = storage.as_path(model_dir).absolute(), False
  while not stopped() and not ((folder / CONFIG).is_file() and checkpoint_steps(folder)):
    if not announced:
      say(f"waiting for the first checkpoint in {folder}")
      announced = True
    time.sleep(5.0 if storage.is_remote(folder) else 0.5)


def load_next(model: Model, step: int | None, average: bool, several: bool) -> Any:
  """Parameters of a checkpoint; None, and a line on why, where it is damaged or gone and others follow."""
  params, problem = None, None
  try:
    params = model.parameters(step, average)
  except UserError as error:
    problem = error
  except (OSError, ValueError) as error:  # removed between two files
    if step is None or (checkpoints_folder(model.folder) / str(step)).exists():
      raise
    problem = UserError(str(error))
  if true_on_all_processes(problem is None):
    return params
  if not several:
    raise problem or UserError(f"another host cannot read the checkpoint of step {step}")
  gone = step is not None and not (checkpoints_folder(model.folder) / str(step)).exists()
  because = problem.lines.get("because", "") if problem else "another host cannot read it"
  say(
    f"step {step:,} was removed before its turn" if gone
    else f"step {step:,} is passed over: {problem.what if problem else ''} {f'({because})' if because else ''}"
  )  # fmt: skip
  return None


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
  stopped: Stopped = NEVER
  poll: float = 5.0  # seconds
  waiting: Callable[[], None] = lambda: None  # told when nothing is there to do

  def __iter__(self) -> Iterator[int]:
    done: set[int] = set()
    while True:
      answer = run_on_process_zero(lambda: self._next(done))
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
