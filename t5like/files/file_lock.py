"""A file that one process at a time holds, on this machine or on another that shares the disk.

The operating system frees the lock of a process that is killed. Its locks may not reach other machines: there a
holder counts as alive while it touches the file. See locks.py for `hold`, which takes one and renews it.
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
  """`try_acquire` until it gives None; `touch` now and then while held; `release` at the end."""

  def __init__(self, path: Path, stale_after_seconds: float, about: Mapping[str, object] | None = None):
    """A holder on another machine counts as dead after that time without a touch. `about` is for others to read."""
    self.path, self._stale_after, self._about = path, stale_after_seconds, dict(about or {})
    self._file: int | None = None

  def try_acquire(self) -> dict[str, object] | None:
    """None where the lock is ours now, else what is known of its holder (nothing while it is being taken)."""
    file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
    if self._is_free(file) and self._is_still(file):
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
    self.path.unlink(missing_ok=True)  # before the lock is free: nobody else can have taken it over
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
      return True  # nobody, or a process of this machine that no longer lives
    return time.time() - os.fstat(file).st_mtime > self._stale_after

  def _is_still(self, file: int) -> bool:
    """Whether the path is the file that was locked: its last holder may have removed it meanwhile."""
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
  """A forked child, such as a loader's worker, must not keep the lock alive when its parent is killed."""
  for file in _held:
    with contextlib.suppress(OSError):
      os.close(file)
  _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
