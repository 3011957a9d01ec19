"""Ctrl-C and SIGTERM end a run at the next step, after a checkpoint; a second one ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Sequence


class Interruption:
  """While active, turns the first of `signals` into `requested`."""

  def __init__(self, signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM)):
    self.signal: int | None = None
    self._signals = signals
    self._previous: dict[int, object] = {}

  @property
  def requested(self) -> bool:
    return self.signal is not None

  def __enter__(self) -> Interruption:
    for number in self._signals:
      self._previous[number] = signal.signal(number, self._receive)
    return self

  def _receive(self, number: int, frame: object) -> None:
    self.signal = number
    self._restore()  # the second signal has its usual effect

  def _restore(self) -> None:
    for number, handler in self._previous.items():
      # None: a handler that C code installed, which Python cannot put back.
      signal.signal(number, signal.SIG_DFL if handler is None else handler)

  def __exit__(self, *unused) -> None:
    self._restore()
