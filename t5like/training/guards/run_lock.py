"""One trainer at a time in a model directory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.file_lock import FileLock, lock_at
from t5like.files.heartbeat import beating
from t5like.files.lease import Lease
from t5like.parallel.process_zero import first_process_decides

LOCK = "trainer.lock"
_HEARTBEAT = 15.0  # seconds between signs of life
_LOOK = 2.0  # seconds between looks for one
_SILENCE_OF_THE_DEAD = 180.0  # seconds; disks over a network tell of a touch up to a minute late


@contextlib.contextmanager
def sole_trainer(model_dir: str | Path) -> Iterator[None]:
  """Holds MODEL_DIR for a run, or refuses at once and says who holds it.

  Process 0 holds the lock for all. To be called by all processes, before anything in the directory is changed.
  """
  lock = lock_at(
    storage.as_path(model_dir).absolute() / LOCK,
    _SILENCE_OF_THE_DEAD,
    {"since": time.strftime("%Y-%m-%d %H:%M:%S %Z")},
  )
  folders = () if storage.is_remote(lock.path) else (lock.path.parent, *lock.path.parent.parents)
  made = [folder for folder in folders if not folder.exists()]
  first_process_decides(lambda: _acquire(lock))
  if jax.process_index() != 0:
    yield
    return
  try:
    with beating(lock.touch, _HEARTBEAT, lost=lambda: _end_at_once(lock)):
      yield
  finally:
    lock.release()
    for folder in made:  # a run that was refused leaves nothing behind
      with contextlib.suppress(OSError):
        folder.rmdir()


def _acquire(lock: FileLock | Lease) -> int:
  try:
    lock.path.parent.mkdir(parents=True, exist_ok=True)
    holder = lock.try_acquire()
    if holder is not None and isinstance(lock, Lease):
      holder = _await_sign_of_life(lock, holder)
  except PermissionError as error:
    if storage.is_remote(lock.path):
      raise storage.denied("MODEL_DIR", lock.path.parent, error) from None
    raise UserError(f"MODEL_DIR cannot be written: {lock.path.parent}", because=error.strerror) from None
  except OSError as error:
    raise UserError(f"MODEL_DIR cannot be written: {lock.path.parent}", because=error.strerror or str(error)) from None
  if holder is not None:
    raise UserError(
      "another run trains in this directory",
      directory=lock.path.parent,
      by=f"process {holder.get('pid', '?')} on {holder.get('host', '?')}",
      since=holder.get("since"),
      try_="another --gin.MODEL_DIR=..., or let it end; a machine that died counts as gone "
      f"{_SILENCE_OF_THE_DEAD:.0f} s after its last sign of life",
    )
  return 0


def _await_sign_of_life(lock: Lease, holder: dict[str, object]) -> dict[str, object] | None:
  """A machine that was preempted leaves its lease: the run that takes its place waits until that is clear.

  The holder, once it gave a sign of life; None where the lease is ours.
  """
  first_sign = lock.last_sign
  by = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
  print(f"{by} held this directory: waiting for a sign of life, {_SILENCE_OF_THE_DEAD:.0f} s at most", flush=True)
  while holder is not None and lock.last_sign == first_sign:
    time.sleep(_LOOK)
    holder = lock.try_acquire()
  return holder


def _end_at_once(lock: FileLock | Lease) -> None:
  os.write(2, f"error: another run took {lock.path.parent} over, as this one gave no sign of life\n".encode())
  os._exit(1)  # not a byte more: the directory is not ours
