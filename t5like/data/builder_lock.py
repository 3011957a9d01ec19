"""One builder at a time for each token cache."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t5like.errors import UserError

# File locks may not reach other machines that share the disk; there a lock counts while its holder touches it.
_SILENCE_OF_THE_DEAD = 600.0  # seconds


@contextlib.contextmanager
def sole_builder(
  folder: Path, waiting: Callable[[str], None] = lambda holder: None, poll: float = 0.5
) -> Iterator[Callable[[], None]]:
  """Waits until nobody else builds the cache of `folder`; yields a function to call now and then as a sign of life.

  The operating system frees the lock of a process that is killed. `waiting` is told once who builds.
  """
  path = folder.with_name(f"{folder.name}.lock")
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _acquire(path, waiting, poll)
  except OSError as error:
    raise UserError("the token cache cannot be written", folder=folder, because=error.strerror or error) from None
  try:
    yield lambda: os.utime(lock)
  finally:
    path.unlink(missing_ok=True)  # before the lock is free: nobody else can have taken it over
    os.close(lock)


def _acquire(path: Path, waiting: Callable[[str], None], poll: float) -> int:
  told = False
  while True:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if _is_free(lock) and _is_still(lock, path):
      os.ftruncate(lock, 0)
      os.pwrite(lock, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)
      return lock
    holder = _holder(lock)
    os.close(lock)
    if holder and not told:
      told = True
      waiting(f"process {holder.get('pid')} on {holder.get('host')}")
    time.sleep(poll)


def _is_free(lock: int) -> bool:
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  holder = _holder(lock)
  if not holder or holder.get("host") == socket.gethostname():
    return True  # nobody, or a process of this machine that no longer lives
  return time.time() - os.fstat(lock).st_mtime > _SILENCE_OF_THE_DEAD


def _is_still(lock: int, path: Path) -> bool:
  """Whether `path` is the file that was locked: its last holder may have removed it meanwhile."""
  try:
    return os.path.samestat(os.fstat(lock), os.stat(path))
  except FileNotFoundError:
    return False


def _holder(lock: int) -> dict[str, object]:
  try:
    return json.loads(os.pread(lock, 4096, 0))
  except ValueError:
    return {}
