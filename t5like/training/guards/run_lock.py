"""One trainer at a time in a model directory."""

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
_HEARTBEAT = 15.0  # seconds between signs of life
_LOOK = 2.0  # seconds between looks for one
_STALE_AFTER_SECONDS = 180.0  # disks over a network show a touch up to a minute late


class RunLock:
  """A model directory that a run holds; `is_lost` once another run has taken it over."""

  def __init__(self, model_dir: Path, end_process: Callable[[int], object] | None = None):
    self._model_dir, self._end_process = model_dir, end_process
    self.is_lost = False

  def check(self) -> None:
    """Raises RunError where the directory is another run's: not a byte more may be written."""
    if self.is_lost:
      raise RunError(self._what())

  def lose(self) -> None:
    """Called from the thread that gives signs of life: ends the process, or else the run stops at its next step."""
    self.is_lost = True
    if self._end_process is not None:
      os.write(2, f"error: {self._what()}\n".encode())
      self._end_process(RunError.status)

  def _what(self) -> str:
    return f"another run took {self._model_dir} over, as this one gave no sign of life"


@contextlib.contextmanager
def sole_trainer(model_dir: str | Path, end_process: Callable[[int], object] | None = None) -> Iterator[RunLock]:
  """Holds MODEL_DIR for a run, or refuses at once and says who holds it.

  Process 0 holds the lock for all. To be called by all processes, before anything in the directory is changed.

  Args:
    model_dir: local or on a store.
    end_process: as `os._exit`, called with a status when another run has taken the directory over. None: the lock
      that is yielded knows, and the run asks it at every step.
  """
  folder = storage.as_path(model_dir).absolute()
  lock = RunLock(folder, end_process)
  with contextlib.ExitStack() as stack:
    run_on_process_zero(lambda: _acquire(folder, stack, lock.lose))
    yield lock


def _acquire(folder: Path, stack: contextlib.ExitStack, on_lost: Callable[[], None]) -> int:
  is_remote = storage.is_remote(folder)
  stack.callback(_remove_empty, [] if is_remote else [f for f in (folder, *folder.parents) if not f.exists()])
  try:
    stack.enter_context(
      hold(
        folder / LOCK,
        _STALE_AFTER_SECONDS,
        wait=math.inf if is_remote else 0.0,
        poll_seconds=_LOOK,
        heartbeat=_HEARTBEAT,
        about={"since": time.strftime("%Y-%m-%d %H:%M:%S %Z")},
        on_wait=_until_sign_of_life(),
        on_lost=on_lost,
      )
    )
  except LockHeld as other:
    raise UserError(
      "another run trains in this directory",
      directory=folder,
      by=describe_holder(other.holder),
      since=other.holder.get("since"),
      try_="another --gin.MODEL_DIR=..., or let it end; a machine that died counts as gone "
      f"{_STALE_AFTER_SECONDS:.0f} s after its last sign of life",
    ) from None
  except OSError as error:
    if is_remote and isinstance(error, PermissionError):
      raise storage.access_denied("MODEL_DIR", folder, error) from None
    raise UserError(f"MODEL_DIR cannot be written: {folder}", because=error.strerror or str(error)) from None
  return 0


def _until_sign_of_life() -> Callable[[FileLock | Lease, Holder], None]:
  """A machine that was preempted leaves its lease: the run that takes its place waits until it is known to be dead."""
  signs: list[float] = []

  def on_wait(lock: FileLock | Lease, holder: Holder) -> None:
    if not signs:
      most = f"{_STALE_AFTER_SECONDS:.0f} s at most"
      say(f"{describe_holder(holder)} held this directory: waiting for a sign of life, {most}")
    signs.append(lock.last_renewal)
    if lock.last_renewal != signs[0]:
      raise LockHeld(holder)

  return on_wait


def _remove_empty(folders: list[Path]) -> None:
  """A run that was refused leaves nothing behind."""
  for folder in folders:
    with contextlib.suppress(OSError):
      folder.rmdir()
