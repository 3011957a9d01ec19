"""One builder at a time for each token cache."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t5like.errors import UserError
from t5like.file_lock import FileLock, lock_at
from t5like.lease import Lease, LeaseLost

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
    with _renewed(lock) if isinstance(lock, Lease) else contextlib.nullcontext(lock.touch) as alive:
      yield alive
  finally:
    lock.release()


@contextlib.contextmanager
def _renewed(lock: Lease) -> Iterator[Callable[[], None]]:
  """A request now and then, and while the cache is sent. Who lost the lease goes on: both build the same bytes."""
  ended = threading.Event()

  def beat() -> None:
    while not ended.wait(_RENEWAL):
      with contextlib.suppress(OSError, LeaseLost):
        lock.touch()

  thread = threading.Thread(target=beat, name="builder-lease", daemon=True)
  thread.start()
  try:
    yield lambda: None
  finally:
    ended.set()
    thread.join()


def _wait_for(lock: FileLock | Lease, waiting: Callable[[str], None], poll: float) -> None:
  told = False
  while (holder := lock.try_acquire()) is not None:
    if holder and not told:
      told = True
      waiting(f"process {holder.get('pid')} on {holder.get('host')}")
    time.sleep(poll)
