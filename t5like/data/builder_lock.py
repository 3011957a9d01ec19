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
_HEARTBEAT_SECONDS = 60.0
_REMOTE_POLL_SECONDS = 5.0  # polling a lease costs a few requests


@contextlib.contextmanager
def sole_builder(
  folder: Path, waiting: Callable[[str], None] = lambda holder: None, poll_seconds: float = 0.5
) -> Iterator[None]:
  """Waits until no other process builds the cache in `folder`, then holds its lock.

  `waiting` is called once with a description of the current holder. A process that loses its lease continues: both
  build the same bytes.
  """
  known: list[Holder] = []

  def on_wait(lock: object, holder: Holder) -> None:
    if holder and not known:
      known.append(holder)
      waiting(describe_holder(holder))

  path = folder.with_name(f"{folder.name}.lock")
  if storage.is_remote(folder):
    poll_seconds = max(poll_seconds, _REMOTE_POLL_SECONDS)
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(
        hold(
          path,
          _STALE_AFTER_SECONDS,
          wait=math.inf,
          poll_seconds=poll_seconds,
          heartbeat=_HEARTBEAT_SECONDS,
          on_wait=on_wait,
        )
      )
    except OSError as error:
      raise UserError("cannot write the token cache", folder=folder, because=error.strerror or error) from None
    yield
