"""One holder at a time: `hold` takes a lock, renews it while a block runs, and gives it back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from t5like.files import storage
from t5like.files.file_lock import FileLock
from t5like.files.heartbeat import beating
from t5like.files.lease import Lease

Holder = Mapping[str, object]  # who has a lock: host, pid and more; empty while it is being taken


class LockHeld(Exception):
  """Somebody else holds the lock and has not given it back in time."""

  def __init__(self, holder: Holder):
    super().__init__(describe_holder(holder))
    self.holder = holder


def describe_holder(holder: Holder) -> str:
  return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"


def lock_at(path: Path, stale_after_seconds: float, about: Mapping[str, object] | None = None) -> FileLock | Lease:
  """Returns a FileLock for a local path, and for a store, which has no locks, a Lease."""
  kind = Lease if storage.is_remote(path) else FileLock
  return kind(path, stale_after_seconds, about)


@contextlib.contextmanager
def hold(
  path: Path,
  stale_after_seconds: float,
  *,
  wait: float = 0.0,
  look_every: float = 0.05,
  heartbeat: float | None = None,
  about: Mapping[str, object] | None = None,
  on_wait: Callable[[FileLock | Lease, Holder], None] = lambda lock, holder: None,
  on_lost: Callable[[], None] = lambda: None,
) -> Iterator[None]:
  """Holds `path` while the block runs; raises LockHeld where somebody else holds it, and OSError where none can.

  Args:
    path: the lock file or object; its folder is created.
    stale_after_seconds: a holder on another machine counts as dead after that time without a sign of life.
    wait: seconds to wait for another holder.
    look_every: seconds between two attempts; on a store each is a few requests.
    heartbeat: seconds between signs of life, which a thread gives; None for a block that takes moments.
    about: facts about this process for others to read.
    on_wait: called before each wait with the lock and its holder; may raise LockHeld to give up.
    on_lost: called from the thread once somebody else has taken over, as this process was silent for too long.
  """
  lock = lock_at(path, stale_after_seconds, about)
  path.parent.mkdir(parents=True, exist_ok=True)
  deadline = time.monotonic() + wait
  while (holder := lock.try_acquire()) is not None:
    if time.monotonic() >= deadline:
      raise LockHeld(holder)
    on_wait(lock, holder)
    time.sleep(look_every)
  try:
    with beating(lock.touch, heartbeat, on_lost) if heartbeat else contextlib.nullcontext():
      yield
  finally:
    lock.release()
