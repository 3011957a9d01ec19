"""Ends a run at Ctrl-C or SIGTERM, after the current step and a checkpoint; a second signal ends it at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from t5like.training.guards.step_file import is_supervised

_REPEAT_SECONDS = 1.0


class Interruption:
  """Sets `requested` at the first of `signals` while active.

  Some platforms signal every process of a job, and a supervisor forwards its signals: under a supervisor, a second
  signal within a second is the same request.
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
    elif self.signal is not None and time.monotonic() - self._received > _REPEAT_SECONDS:
      self._restore()
      signal.raise_signal(number)
    if self.signal is None:
      self.signal, self._received = number, time.monotonic()

  def _restore(self) -> None:
    for number, handler in self._previous.items():
      # None: a handler installed from C, which Python cannot restore.
      signal.signal(number, signal.SIG_DFL if handler is None else handler)

  def __exit__(self, *unused) -> None:
    self._restore()
