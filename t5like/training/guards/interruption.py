"""Ctrl-C and SIGTERM end a run at the next step, after a checkpoint; a second one ends it at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from t5like.training.guards.step_file import is_supervised

_ECHO = 1.0  # seconds


class Interruption:
  """While active, turns the first of `signals` into `requested`.

  Some platforms tell every process of a job, and a supervisor passes on what it is told: where there is one, a signal
  that follows at once is the same request.
  """

  def __init__(self, signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM)):
    self.signal: int | None = None
    self._signals = signals
    self._previous: dict[int, object] = {}
    self._received = 0.0

  @property
  def requested(self) -> bool:
    return self.signal is not None

  def __enter__(self) -> Interruption:
    for number in self._signals:
      self._previous[number] = signal.signal(number, self._receive)
    return self

  def _receive(self, number: int, frame: object) -> None:
    if not is_supervised():
      self._restore()  # the second signal has its usual effect
    elif self.signal is not None and time.monotonic() - self._received > _ECHO:
      self._restore()
      signal.raise_signal(number)
    if self.signal is None:
      self.signal, self._received = number, time.monotonic()

  def _restore(self) -> None:
    for number, handler in self._previous.items():
      # None: a handler that C code installed, which Python cannot put back.
      signal.signal(number, signal.SIG_DFL if handler is None else handler)

  def __exit__(self, *unused) -> None:
    self._restore()
