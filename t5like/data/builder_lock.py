"""One builder at a time for each token cache."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t5like.errors import UserError
from t5like.files.file_lock import FileLock, lock_at
from t5like.files.heartbeat import beating
from t5like.files.lease import Lease

_SILENCE_OF_THE_DEAD = 600.0  # seconds; a builder gives signs of life between pieces of work
_RENEWAL = 60.0  # seconds between those on a store
_LOOK = 5.0  # seconds between looks at a lease that others hold: each is some requests


@contextlib.contextmanager
def sole_builder(
  folder: Path, waiting: Callable[[str], None] = lambda holder: None, poll: float = 0.5
) -> Iterator[Callable[[], None]]:
  """Waits until nobody else builds the cache of `folder`; yields a function to call now and then as a sign of life.

  `waiting` is told once who builds.
  """
  lock = lock_at(folder.with_name(f"{folder.name}.lock"), _SILENCE_OF_THE_DEAD)
  try:
    lock.path.parent.mkdir(parents=True, exist_ok=True)
    _wait_for(lock, waiting, max(poll, _LOOK) if isinstance(lock, Lease) else poll)
  except OSError as error:
    raise UserError("the token cache cannot be written", folder=folder, because=error.strerror or error) from None
  try:
    if isinstance(lock, FileLock):
      yield lock.touch
    else:  # a request now and then, and while the cache is sent; who lost the lease goes on: both build the same bytes
      with beating(lock.touch, _RENEWAL):
        yield lambda: None
  finally:
    lock.release()


def _wait_for(lock: FileLock | Lease, waiting: Callable[[str], None], poll: float) -> None:
  told = False
  while (holder := lock.try_acquire()) is not None:
    if holder and not told:
      told = True
      waiting(f"process {holder.get('pid')} on {holder.get('host')}")
    time.sleep(poll)
