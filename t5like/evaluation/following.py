"""Selects checkpoints to evaluate: some, all, or new ones as training writes them."""

from __future__ import annotations

import dataclasses
import functools
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
  """The checkpoints to evaluate: one, several, or new ones as training writes them."""

  step: int | None = None  # None: the newest
  steps: str | None = None  # "all", or "1000,2000"
  follow: bool = False

  @property
  def several(self) -> bool:
    return bool(self.follow or self.steps)

  def select(self, model: Model, stopped: Stopped = NEVER) -> Iterable[int | None]:
    """Returns steps in order; None for a model without steps. All processes must iterate over it."""
    if not self.several:
      return [agreed_step(model, self.step)]
    if model.experiment is None:
      raise UserError(f"{model.folder} is a Hugging Face folder and has no steps")
    return Follower(model.folder, stopped) if self.follow else self._chosen(model.folder)

  def _chosen(self, model_dir: Path) -> list[int]:
    """Returns the steps that process 0 finds: hosts may look before and after a run saves or deletes one."""
    find = functools.cache(lambda: chosen_steps(model_dir, self.steps))  # on process 0, once
    count = run_on_process_zero(lambda: len(find()))
    return [run_on_process_zero(lambda n=n: find()[n]) for n in range(count)]


def agreed_step(model: Model, step: int | None = None) -> int | None:
  """Returns the given step, or the newest that process 0 finds, on all processes: a run may save one meanwhile.

  None for a model without steps.
  """

  def find() -> int:
    found = model.step(step)
    return -1 if found is None else found

  found = run_on_process_zero(find)
  return None if found < 0 else found


def wait_for_model(model_dir: str, stopped: Stopped) -> None:
  """Waits for the first checkpoint of a run."""
  storage.check_reachable(model_dir, "--model_dir")
  folder, announced = storage.as_path(model_dir).absolute(), False
  while not stopped() and not ((folder / CONFIG).is_file() and checkpoint_steps(folder)):
    if not announced:
      say(f"waiting for the first checkpoint in {folder}")
      announced = True
    time.sleep(5.0 if storage.is_remote(folder) else 0.5)


def load_next(model: Model, step: int | None, average: bool, several: bool) -> Any:
  """Loads the parameters of a checkpoint; if `several`, reports a damaged or deleted one and returns None."""
  params, problem = None, None
  try:
    params = model.parameters(step, average)
  except UserError as error:
    problem = error
  except (OSError, ValueError) as error:  # deleted while reading
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
    f"step {step:,} was deleted before it could be evaluated" if gone
    else f"step {step:,} is skipped: {problem.what if problem else ''} {f'({because})' if because else ''}"
  )  # fmt: skip
  return None


def chosen_steps(model_dir: Path, given: str) -> list[int]:
  """Parses 'all' or steps such as '1000,2000'; returns existing steps in order."""
  existing = checkpoint_steps(model_dir)
  if not existing:
    raise UserError("no checkpoints found", looked=model_dir / FOLDER)
  if given == "all":
    return existing
  try:
    wanted = sorted({int(step) for step in given.replace("_", "").split(",")})
  except ValueError:
    raise UserError(f"invalid --steps={given}", expected="all, or steps such as 1000,2000") from None
  if missing := [step for step in wanted if step not in existing]:
    raise UserError(
      f"no checkpoint of step {', '.join(map(str, missing))}", looked=model_dir / FOLDER,
      known=", ".join(map(str, existing)),
    )  # fmt: skip
  return wanted


def has_finished(model_dir: Path) -> bool:
  """Whether the run's newest attempt finished."""
  attempts = read_attempts(model_dir / FILE)
  return bool(attempts) and attempts[-1]["ended"] == FINISHED


@dataclasses.dataclass
class Follower:
  """Yields the steps of a directory as checkpoints appear, oldest first. All processes must iterate over it.

  Skips checkpoints that are deleted meanwhile. Ends when the run has finished and no checkpoint is left, or when
  `stopped`.
  """

  model_dir: Path
  stopped: Stopped = NEVER
  poll: float = 5.0  # seconds
  waiting: Callable[[], None] = lambda: None  # called when there is nothing to do

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
    """Returns the next step, or a code if there is none; blocks for up to `poll` seconds to limit broadcasts."""
    deadline = time.monotonic() + self.poll
    while True:
      finished = has_finished(self.model_dir)  # read first, so that checkpoints written at the end are seen below
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
