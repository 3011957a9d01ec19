"""A lock file for processes on this machine, or on others that share the disk.

The operating system releases the lock of a killed process. It may not see locks of other machines: there a holder
is considered alive while it touches the file. See locks.py for `hold`, which acquires and renews a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

_held: set[int] = set()


class FileLock:
  """A lock: call `try_acquire` until it returns None, `touch` regularly while holding it, then `release`."""

  def __init__(self, path: Path, stale_after_seconds: float, about: Mapping[str, object] | None = None):
    """Creates a lock that is not yet held.

    Args:
      path: the lock file.
      stale_after_seconds: a holder on another machine is considered dead after this time without a `touch`.
      about: information about this process for others to read.
    """
    self.path, self._stale_after, self._about = path, stale_after_seconds, dict(about or {})
    self._file: int | None = None

  def try_acquire(self) -> dict[str, object] | None:
    """Returns None if the lock was acquired, else its holder (empty while it is being acquired)."""
    file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
    if self._is_free(file) and self._is_current(file):
      os.ftruncate(file, 0)
      os.pwrite(file, json.dumps({"host": socket.gethostname(), "pid": os.getpid(), **self._about}).encode(), 0)
      self._file = file
      _held.add(file)
      return None
    holder = _holder(file)
    os.close(file)
    return holder

  def touch(self) -> None:
    os.utime(self._file)

  def release(self) -> None:
    self.path.unlink(missing_ok=True)  # before the lock is free, so it cannot be another holder's
    _held.discard(self._file)
    os.close(self._file)
    self._file = None

  def _is_free(self, file: int) -> bool:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return False
    holder = _holder(file)
    if not holder or holder.get("host") == socket.gethostname():
      return True  # no holder, or a dead process of this machine
    return time.time() - os.fstat(file).st_mtime > self._stale_after

  def _is_current(self, file: int) -> bool:
    """Returns whether the path still is the locked file: its last holder may have removed it in the meantime."""
    try:
      return os.path.samestat(os.fstat(file), os.stat(self.path))
    except FileNotFoundError:
      return False


def _holder(file: int) -> dict[str, object]:
  try:
    return json.loads(os.pread(file, 4096, 0))
  except ValueError:
    return {}


def _forget_in_child() -> None:
  """Closes the lock files: a forked child, such as a loader's worker, must not keep the lock of a killed parent."""
  for file in _held:
    with contextlib.suppress(OSError):
      os.close(file)
  _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
