"""Signs of life that a holder gives while it works, so that others do not take over what it holds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from t5like.files.lease import LeaseLost


@contextlib.contextmanager
def beating(touch: Callable[[], None], seconds: float, lost: Callable[[], None] = lambda: None) -> Iterator[None]:
  """Has a thread call `touch` every so many seconds while the block runs.

  A disk or store that is away for a moment is tried again at the next beat. `lost` is called, and the beats end, when
  somebody else has taken over. A touch that hangs holds up the end of the block by one interval at most; what it
  finds out afterwards is about a lock that was given back, and does not count.
  """
  ended = threading.Event()

  def beat() -> None:
    while not ended.wait(seconds):
      try:
        touch()
      except OSError:
        continue
      except LeaseLost:
        if not ended.is_set():
          lost()
        return

  thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join(seconds)
