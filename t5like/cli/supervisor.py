"""Runs the trainer as a child process and restarts it when it crashes: `t5like train --restarts=N ...`.

The child reports its step through a small file (training/guards/step_file.py), so that this process needs neither jax
nor gin and uses no device. On a pod each host has its own supervisor: when one child dies, the collectives of the
others fail or stall, so that they end, too, and all of them join again at the coordinator.

Every decision is printed to stderr and appended to MODEL_DIR/supervisor.jsonl, or to supervisor-HOST.jsonl on an object
store, which cannot append.
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
from t5like.training.guards.step_file import STEP_FILE_VARIABLE, read_step_file

LOG = "supervisor"  # .jsonl; training/records/model_dir.py accepts a directory with nothing else
HOSTS_MISSING = 75  # exit status of a supervised trainer without the other hosts, as EX_TEMPFAIL: try again
_STALLED = 124
_SAME_STEP = 3  # steps that Python runs ahead of the devices: a failing step is noticed with this tolerance
_MAX_FAILURES = 3  # at the same step
_MAX_WAIT = 300.0  # seconds


@dataclasses.dataclass(frozen=True)
class Ending:
  """The end of a child process."""

  status: int  # negative: the signal that killed it
  step: int | None  # the last one started; None before the first
  signal: int | None = None  # received and forwarded by this process meanwhile


@dataclasses.dataclass(frozen=True)
class Decision:
  restart: bool
  reason: str
  wait: float = 0.0  # seconds before the restart

  def __str__(self) -> str:
    what = f"restarting in {self.wait:g} s" if self.restart else "not restarted"
    return f"{self.reason}: {what}"


class Policy:
  """Decides whether to restart after each end of the child."""

  def __init__(self, restarts: int, first_wait: float):
    self.restarts_left = restarts
    self._first_wait = self._wait = first_wait
    self._farthest = -1
    self._failed_at: int | None = None
    self._failures = 0  # consecutive ones at that step

  def decide(self, ending: Ending) -> Decision:
    how = describe(ending)
    if ending.status == 0:
      return Decision(False, "finished")
    if ending.status == UserError.status:
      return Decision(False, f"{how}, which a restart cannot fix")
    if ending.signal is not None:
      return Decision(False, f"{how}, after {signal.Signals(ending.signal).name} to the supervisor")
    if self._fails_repeatedly(ending):
      where = "before the first step" if ending.step is None else f"at step {ending.step:,}"
      return Decision(False, f"{how}, {_MAX_FAILURES} consecutive failures {where}")
    if self.restarts_left == 0:
      return Decision(False, f"{how}, no restarts left")
    self.restarts_left -= 1
    return Decision(True, f"{how}, {self.restarts_left} restarts left", self._next_wait(ending))

  def _fails_repeatedly(self, ending: Ending) -> bool:
    if ending.status in _EXTERNAL_CAUSES:
      return False
    step = -1 if ending.step is None else ending.step
    same = self._failed_at is not None and (
      step == self._failed_at if -1 in (step, self._failed_at) else abs(step - self._failed_at) <= _SAME_STEP
    )
    self._failures = self._failures + 1 if same else 1
    self._failed_at = step
    return self._failures >= _MAX_FAILURES

  def _next_wait(self, ending: Ending) -> float:
    """Returns the seconds to wait: doubled each time, reset by progress."""
    if ending.step is not None and ending.step > self._farthest:
      self._farthest, self._wait = ending.step, self._first_wait
    wait, self._wait = self._wait, min(2 * self._wait, _MAX_WAIT)
    return wait


_INTERRUPTED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM))
_EXTERNAL_CAUSES = (*_INTERRUPTED, HOSTS_MISSING)


def describe(ending: Ending) -> str:
  """Describes how and where the child ended."""
  at = "before its first step" if ending.step is None else f"at step {ending.step:,}"
  if ending.status < 0:
    name = signal.Signals(-ending.status).name
    why = " (by a user, by the platform, or out of memory)" if name == "SIGKILL" else ""
    return f"killed by {name}{why} {at}"
  names = {
    UserError.status: "invalid input",
    HOSTS_MISSING: "other hosts did not join",
    _STALLED: f"stalled {at}",
    **{status: f"stopped by {signal.Signals(status - 128).name}, saved, {at}" for status in _INTERRUPTED},
  }
  return f"{names.get(ending.status, f'failed {at}')} (status {ending.status})"


def supervise(command: Sequence[str], restarts: int, first_wait: float = 5.0) -> int:
  """Runs `command` until it finishes, is stopped or keeps failing; returns its last exit status, as in a shell."""
  policy, attempt = Policy(restarts, first_wait), 0
  with tempfile.TemporaryDirectory(prefix="t5like-") as folder, Children() as children:
    while True:
      attempt += 1
      ending, model_dir = _run_once(command, Path(folder) / f"attempt-{attempt}", children)
      decision = policy.decide(ending)
      _log(model_dir, attempt, ending, decision)
      if decision.restart and children.sleep(decision.wait):
        decision = Decision(False, f"{signal.Signals(children.received_signal).name} received before the restart")
        ending = dataclasses.replace(ending, status=128 + children.received_signal, signal=children.received_signal)
        _log(model_dir, attempt, ending, decision)
      if not decision.restart:
        return shell_status(ending.status)


def _run_once(command: Sequence[str], step_file: Path, children: Children) -> tuple[Ending, str]:
  child = children.start(command, env={**os.environ, STEP_FILE_VARIABLE: str(step_file)})
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
    "status": ending.status,
    "step": ending.step,
    "asked": ending.signal,
    **dataclasses.asdict(decision),
  }
  if not model_dir:
    return  # the trainer ended before it accepted one
  folder = storage.as_path(model_dir)
  name = f"{LOG}-{socket.gethostname()}" if storage.is_remote(folder) else LOG
  try:
    storage.append_text(folder / f"{name}.jsonl", json.dumps(line) + "\n")
  except OSError as error:
    print(f"supervisor: {folder} cannot be written: {error}", file=sys.stderr, flush=True)
