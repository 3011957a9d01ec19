"""One builder at a time for each token cache."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.locks import Holder, describe_holder, hold

_STALE_AFTER_SECONDS = 600.0
_HEARTBEAT = 60.0  # seconds between signs of life
_LOOK = 5.0  # seconds between looks at a lease that others hold: each is some requests


@contextlib.contextmanager
def sole_builder(
  folder: Path, waiting: Callable[[str], None] = lambda holder: None, poll: float = 0.5
) -> Iterator[None]:
  """Waits until nobody else builds the cache of `folder`; `waiting` is called once with a text that says who does.

  Who loses a lease goes on: both build the same bytes.
  """
  known: list[Holder] = []

  def on_wait(lock: object, holder: Holder) -> None:
    if holder and not known:
      known.append(holder)
      waiting(describe_holder(holder))

  path, look_every = folder.with_name(f"{folder.name}.lock"), max(poll, _LOOK) if storage.is_remote(folder) else poll
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(
        hold(path, _STALE_AFTER_SECONDS, wait=math.inf, look_every=look_every, heartbeat=_HEARTBEAT, on_wait=on_wait)
      )
    except OSError as error:
      raise UserError("the token cache cannot be written", folder=folder, because=error.strerror or error) from None
    yield
