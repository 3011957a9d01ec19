"""Locks a model directory: one trainer at a time."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t5like.console import say
from t5like.errors import RunError, UserError
from t5like.files import storage
from t5like.files.file_lock import FileLock
from t5like.files.lease import Lease
from t5like.files.locks import Holder, LockHeld, describe_holder, hold
from t5like.parallel.process_zero import run_on_process_zero

LOCK = "trainer.lock"
_HEARTBEAT = 15.0  # seconds between heartbeats
_POLL = 2.0  # seconds between attempts to acquire the lock
_STALE_AFTER_SECONDS = 180.0  # network file systems show a touch up to a minute late


class RunLock:
  """The lock of a run on its model directory; `is_lost` once another run has taken over."""

  def __init__(self, model_dir: Path, end_process: Callable[[int], object] | None = None):
    self._model_dir, self._end_process = model_dir, end_process
    self.is_lost = False

  def check(self) -> None:
    """Raises RunError if another run has taken over the directory: nothing more may be written."""
    if self.is_lost:
      raise RunError(self._message())

  def mark_lost(self) -> None:
    """Ends the process, or lets the run stop at its next step. Called from the heartbeat thread."""
    self.is_lost = True
    if self._end_process is not None:
      os.write(2, f"error: {self._message()}\n".encode())
      self._end_process(RunError.status)

  def _message(self) -> str:
    return f"another run took over {self._model_dir}, because this one sent no heartbeat"


@contextlib.contextmanager
def sole_trainer(model_dir: str | Path, end_process: Callable[[int], object] | None = None) -> Iterator[RunLock]:
  """Locks MODEL_DIR for a run, or raises UserError with the holder of the lock.

  Process 0 holds the lock for all. Must be called by all processes, before anything in the directory changes.

  Args:
    model_dir: local or on an object store.
    end_process: such as `os._exit`, called with a status when another run has taken over the directory. None: the run
      has to check the yielded lock at every step.
  """
  folder = storage.as_path(model_dir).absolute()
  lock = RunLock(folder, end_process)
  with contextlib.ExitStack() as stack:
    run_on_process_zero(lambda: _acquire(folder, stack, lock.mark_lost))
    yield lock


def _acquire(folder: Path, stack: contextlib.ExitStack, on_lost: Callable[[], None]) -> None:
  is_remote = storage.is_remote(folder)
  stack.callback(_remove_empty, [] if is_remote else [f for f in (folder, *folder.parents) if not f.exists()])
  try:
    stack.enter_context(
      hold(
        folder / LOCK,
        _STALE_AFTER_SECONDS,
        wait=math.inf if is_remote else 0.0,
        poll_seconds=_POLL,
        heartbeat=_HEARTBEAT,
        about={"since": time.strftime("%Y-%m-%d %H:%M:%S %Z")},
        on_wait=_wait_for_heartbeat(),
        on_lost=on_lost,
      )
    )
  except LockHeld as other:
    raise UserError(
      "another run is training in this directory",
      directory=folder,
      by=describe_holder(other.holder),
      since=other.holder.get("since"),
      try_="another --gin.MODEL_DIR=..., or wait until it ends; the lock of a dead machine expires "
      f"{_STALE_AFTER_SECONDS:.0f} s after its last heartbeat",
    ) from None
  except OSError as error:
    if is_remote and isinstance(error, PermissionError):
      raise storage.access_denied("MODEL_DIR", folder, error) from None
    raise UserError(f"MODEL_DIR cannot be written: {folder}", because=error.strerror or str(error)) from None


def _wait_for_heartbeat() -> Callable[[FileLock | Lease, Holder], None]:
  """Returns a callback that waits until the holder is known to be dead: a preempted machine leaves its lease."""
  heartbeats: list[float] = []

  def on_wait(lock: FileLock | Lease, holder: Holder) -> None:
    if not heartbeats:
      most = f"{_STALE_AFTER_SECONDS:.0f} s at most"
      say(f"{describe_holder(holder)} held this directory: waiting for a heartbeat, {most}")
    heartbeats.append(lock.last_renewal)
    if lock.last_renewal != heartbeats[0]:
      raise LockHeld(holder)

  return on_wait


def _remove_empty(folders: list[Path]) -> None:
  """Removes the folders that a refused run has created."""
  for folder in folders:
    with contextlib.suppress(OSError):
      folder.rmdir()
