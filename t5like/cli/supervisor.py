"""Runs the trainer as a child and starts it again when it crashes: `t5like train --restarts=N ...`.

The child tells how far it is through a small file (training/step_file.py), so that this process needs neither jax nor
gin and holds no device. On a pod each host has a supervisor of its own: when one child dies, the others' collectives
fail or stand still, they end too, and all meet again at the coordinator.

Every decision is a line on standard error and one in MODEL_DIR/supervisor.jsonl, or supervisor-HOST.jsonl where
MODEL_DIR is an object store, which cannot append.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.child_processes import Children, shell_status
from t5like.training.guards.step_file import VARIABLE, read_step_file

LOG = "supervisor"  # .jsonl; training/model_dir.py lets it stand alone
ALONE = 75  # of a supervised trainer whose fellow hosts did not come, as EX_TEMPFAIL: to be tried again
_STALLED = 124
_SAME_STEP = 3  # steps: the devices run so far behind Python, so that a failing step is noticed here or there
_STICKY = 3  # failures at the same step after which it will fail for ever
_LONGEST_WAIT = 300.0


@dataclasses.dataclass(frozen=True)
class Ending:
  """How a child ended."""

  status: int  # negative: the signal that killed it
  step: int | None  # the last it had begun, None where it died before the first
  asked: int | None = None  # the signal that this process got meanwhile, and passed on


@dataclasses.dataclass(frozen=True)
class Decision:
  restart: bool
  reason: str
  wait: float = 0.0  # seconds before the restart

  def __str__(self) -> str:
    what = f"starting again in {self.wait:g} s" if self.restart else "not started again"
    return f"{self.reason}: {what}"


class Policy:
  """Decides, ending by ending, whether to start again."""

  def __init__(self, restarts: int, first_wait: float):
    self.restarts_left = restarts
    self._first_wait = self._wait = first_wait
    self._farthest = -1
    self._failed_at: int | None = None
    self._failures = 0  # at that step, one after the other

  def decide(self, ending: Ending) -> Decision:
    how = describe(ending)
    if ending.status == 0:
      return Decision(False, "finished")
    if ending.status == UserError.status:
      return Decision(False, f"{how}, which starting again does not mend")
    if ending.asked is not None:
      return Decision(False, f"{how}, as {signal.Signals(ending.asked).name} to this process asked")
    if self._is_sticky(ending):
      where = "before the first step" if ending.step is None else f"at step {ending.step:,}"
      return Decision(False, f"{how}, the {_STICKY}rd time in a row {where}")
    if self.restarts_left == 0:
      return Decision(False, f"{how}, and no restart is left")
    self.restarts_left -= 1
    return Decision(True, f"{how}, {self.restarts_left} restarts left", self._next_wait(ending))

  def _is_sticky(self, ending: Ending) -> bool:
    if ending.status in _NOT_ITS_FAULT:
      return False
    step = -1 if ending.step is None else ending.step
    same = self._failed_at is not None and (
      step == self._failed_at if -1 in (step, self._failed_at) else abs(step - self._failed_at) <= _SAME_STEP
    )
    self._failures = self._failures + 1 if same else 1
    self._failed_at = step
    return self._failures >= _STICKY

  def _next_wait(self, ending: Ending) -> float:
    """Twice as long as the last time, unless there was progress since."""
    if ending.step is not None and ending.step > self._farthest:
      self._farthest, self._wait = ending.step, self._first_wait
    wait, self._wait = self._wait, min(2 * self._wait, _LONGEST_WAIT)
    return wait


_ASKED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM))
_NOT_ITS_FAULT = (*_ASKED, ALONE)


def describe(ending: Ending) -> str:
  """The status in words."""
  at = "before its first step" if ending.step is None else f"at step {ending.step:,}"
  if ending.status < 0:
    name = signal.Signals(-ending.status).name
    why = " (by hand, by the platform, or for lack of memory)" if name == "SIGKILL" else ""
    return f"killed by {name}{why} {at}"
  names = {
    UserError.status: "bad input",
    ALONE: "other hosts did not come",
    _STALLED: f"stood still {at}",
    **{status: f"stopped by {signal.Signals(status - 128).name}, saved, {at}" for status in _ASKED},
  }
  return f"{names.get(ending.status, f'failed {at}')} (status {ending.status})"


def supervise(command: Sequence[str], restarts: int, first_wait: float = 5.0) -> int:
  """Runs `command` until it finishes, is stopped, or is given up; returns its last exit status, as a shell's."""
  policy, attempt = Policy(restarts, first_wait), 0
  with tempfile.TemporaryDirectory(prefix="t5like-") as folder, Children() as children:
    while True:
      attempt += 1
      ending, model_dir = _run_once(command, Path(folder) / f"attempt-{attempt}", children)
      decision = policy.decide(ending)
      _log(model_dir, attempt, ending, decision)
      if decision.restart and children.sleep(decision.wait):
        decision = Decision(False, f"{signal.Signals(children.received_signal).name} came before the next start")
        ending = dataclasses.replace(ending, status=128 + children.received_signal, asked=children.received_signal)
        _log(model_dir, attempt, ending, decision)
      if not decision.restart:
        return shell_status(ending.status)


def _run_once(command: Sequence[str], step_file: Path, children: Children) -> tuple[Ending, str]:
  child = children.start(command, env={**os.environ, VARIABLE: str(step_file)})
  status = child.wait()
  children.reap(child)
  step, model_dir = read_step_file(step_file)
  return Ending(status, step, children.received_signal), model_dir


def _log(model_dir: str, attempt: int, ending: Ending, decision: Decision) -> None:
  print(f"supervisor: attempt {attempt} {decision}", file=sys.stderr, flush=True)
  line = {
    "time": round(time.time(), 3),
    "host": socket.gethostname(),
    "attempt": attempt,
    **dataclasses.asdict(ending),
    **dataclasses.asdict(decision),
  }
  if not model_dir:
    return  # the trainer did not come so far as to accept one
  folder = storage.as_path(model_dir)
  name = f"{LOG}-{socket.gethostname()}" if storage.is_remote(folder) else LOG
  try:
    storage.append_text(folder / f"{name}.jsonl", json.dumps(line) + "\n")
  except OSError as error:
    print(f"supervisor: {folder} cannot be written: {error}", file=sys.stderr, flush=True)
