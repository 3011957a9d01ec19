"""Locks with one holder at a time: `hold` acquires a lock, renews it while a block runs, and releases it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from t5like.files import storage
from t5like.files.file_lock import FileLock
from t5like.files.heartbeat import keep_alive
from t5like.files.lease import Lease

Holder = Mapping[str, object]  # host, pid and more; empty while the lock is being acquired


class LockHeld(Exception):
  """Another process holds the lock and has not released it in time."""

  def __init__(self, holder: Holder):
    super().__init__(describe_holder(holder))
    self.holder = holder


def describe_holder(holder: Holder) -> str:
  return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"


def lock_at(path: Path, stale_after_seconds: float, about: Mapping[str, object] | None = None) -> FileLock | Lease:
  """Returns a FileLock for a local path, or a Lease for a store, which has no locks."""
  kind = Lease if storage.is_remote(path) else FileLock
  return kind(path, stale_after_seconds, about)


@contextlib.contextmanager
def hold(
  path: Path,
  stale_after_seconds: float,
  *,
  wait: float = 0.0,
  poll_seconds: float = 0.05,
  heartbeat: float | None = None,
  about: Mapping[str, object] | None = None,
  on_wait: Callable[[FileLock | Lease, Holder], None] = lambda lock, holder: None,
  on_lost: Callable[[], None] = lambda: None,
) -> Iterator[None]:
  """Holds the lock at `path` while the block runs.

  Args:
    path: the lock file or object; its folder is created.
    stale_after_seconds: a holder on another machine is considered dead after this time without a heartbeat.
    wait: seconds to wait for another holder.
    poll_seconds: seconds between two attempts; on a store each is a few requests.
    heartbeat: seconds between heartbeats, sent by a thread; None for a short block.
    about: information about this process for others to read.
    on_wait: called before each wait with the lock and its holder; may raise LockHeld to give up.
    on_lost: called from the heartbeat thread if another process has taken over a stale lock.

  Raises:
    LockHeld: another process holds the lock.
    OSError: the lock cannot be created.
  """
  lock = lock_at(path, stale_after_seconds, about)
  path.parent.mkdir(parents=True, exist_ok=True)
  deadline = time.monotonic() + wait
  while (holder := lock.try_acquire()) is not None:
    if time.monotonic() >= deadline:
      raise LockHeld(holder)
    on_wait(lock, holder)
    time.sleep(poll_seconds)
  try:
    with keep_alive(lock.touch, heartbeat, on_lost) if heartbeat else contextlib.nullcontext():
      yield
  finally:
    lock.release()
