"""Ctrl-C and SIGTERM end a run at the next step, after a checkpoint; a second one ends it at once."""

from __future__ import annotations

import signal


class Interruption:
  """While active, turns the first SIGINT or SIGTERM into `requested`."""

  def __init__(self):
    self.signal: int | None = None
    self._previous: dict[int, object] = {}

  @property
  def requested(self) -> bool:
    return self.signal is not None

  def __enter__(self) -> Interruption:
    for number in (signal.SIGINT, signal.SIGTERM):
      self._previous[number] = signal.signal(number, self._receive)
    return self

  def _receive(self, number: int, frame: object) -> None:
    self.signal = number
    self._restore()  # the second signal has its usual effect

  def _restore(self) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def __exit__(self, *unused) -> None:
    self._restore()
