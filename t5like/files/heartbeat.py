"""A heartbeat that renews a lock while its holder works."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from t5like.files.lease import LeaseLost


@contextlib.contextmanager
def keep_alive(touch: Callable[[], None], seconds: float, on_lost: Callable[[], None] = lambda: None) -> Iterator[None]:
  """Calls `touch` from a thread every `seconds` seconds while the block runs.

  If the disk or store is unavailable, it is tried again at the next heartbeat. If another process has taken over,
  `on_lost` is called and the heartbeat stops. A `touch` that hangs delays the end of the block by one interval at
  most; its result is then ignored, as the lock has been released.
  """
  ended = threading.Event()

  def run() -> None:
    while not ended.wait(seconds):
      try:
        touch()
      except OSError:
        continue
      except LeaseLost:
        if not ended.is_set():
          on_lost()
        return

  thread = threading.Thread(target=run, name="heartbeat", daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join(seconds)
