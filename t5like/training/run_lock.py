"""One trainer at a time in a model directory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from t5like.errors import UserError
from t5like.file_lock import FileLock
from t5like.training.agreement import first_process_decides

LOCK = "trainer.lock"
_HEARTBEAT = 15.0  # seconds between signs of life
_SILENCE_OF_THE_DEAD = 180.0  # seconds; disks over a network tell of a touch up to a minute late


@contextlib.contextmanager
def sole_trainer(model_dir: str | Path) -> Iterator[None]:
  """Holds MODEL_DIR for a run, or refuses at once and says who holds it.

  Process 0 holds the lock for all. To be called by all processes, before anything in the directory is changed.
  """
  lock = FileLock(
    Path(model_dir).expanduser().absolute() / LOCK,
    _SILENCE_OF_THE_DEAD,
    {"since": time.strftime("%Y-%m-%d %H:%M:%S %Z")},
  )
  made = [folder for folder in (lock.path.parent, *lock.path.parent.parents) if not folder.exists()]
  first_process_decides(lambda: _acquire(lock))
  if jax.process_index() != 0:
    yield
    return
  ended = threading.Event()
  heart = threading.Thread(target=_beat, args=(lock, ended), name="trainer-lock", daemon=True)
  heart.start()
  try:
    yield
  finally:
    ended.set()
    heart.join()
    lock.release()
    for folder in made:  # a run that was refused leaves nothing behind
      with contextlib.suppress(OSError):
        folder.rmdir()


def _acquire(lock: FileLock) -> int:
  try:
    lock.path.parent.mkdir(parents=True, exist_ok=True)
    holder = lock.try_acquire()
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


def _beat(lock: FileLock, ended: threading.Event) -> None:
  while not ended.wait(_HEARTBEAT):
    with contextlib.suppress(OSError):  # a network disk that is away for a moment must not end the run
      lock.touch()
