"""Children that hear the signals of this process and end with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_ASKING_PARENT = "T5LIKE_PARENT"
_LIBRARY = ctypes.CDLL(None)  # loaded before any fork


class Children:
  """While active, SIGINT and SIGTERM go to all children that run; `got` is the last of them."""

  def __init__(self):
    self.got: int | None = None
    self._running: list[subprocess.Popen] = []
    self._previous: Mapping[int, object] = {}

  def __enter__(self) -> Children:
    self._previous = {number: signal.signal(number, self._pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    return self

  def __exit__(self, *unused: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def start(self, command: Sequence[str], **options: object) -> subprocess.Popen:
    """A child in a group of its own: Ctrl-C in a terminal reaches this process alone, which passes it on once.

    From the main thread: Linux counts the end of the thread that started a child as its parent's.
    """
    child = subprocess.Popen(command, process_group=0, preexec_fn=_end_with_parent, **options)
    self._running.append(child)
    if self.got is not None:  # it came while the child was being made
      child.send_signal(self.got)
    return child

  def ended(self, child: subprocess.Popen) -> None:
    """Forgets a child that has ended; what it started and left behind must not hold devices and memory."""
    self._running.remove(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(child.pid, signal.SIGKILL)

  def sleep(self, seconds: float) -> bool:
    """True as soon as a signal has come."""
    deadline = time.monotonic() + seconds
    while self.got is None and (left := deadline - time.monotonic()) > 0:
      time.sleep(min(left, 0.2))
    return self.got is not None

  def _pass_on(self, number: int, frame: object) -> None:
    self.got = number
    for child in self._running:
      child.send_signal(number)


def as_shell(status: int) -> int:
  """Popen's exit status as a shell has it: 128 and the number of the signal that killed a child."""
  return status if status >= 0 else 128 - status


def bound_to_this_process() -> dict[str, str]:
  """The environment of a child that calls `end_with_asking_parent`: JAX minds a fork that runs Python code."""
  return {**os.environ, _ASKING_PARENT: str(os.getpid())}


def end_with_asking_parent() -> None:
  """In a child that was started in such an environment: from now on it ends when its parent does."""
  parent = os.environ.pop(_ASKING_PARENT, None)
  if parent is None:
    return
  _end_with_parent()
  if os.getppid() != int(parent):  # it was gone before
    signal.raise_signal(signal.SIGTERM)


def _end_with_parent() -> None:
  """In the child: who is killed must not leave work behind that nobody watches. Linux only."""
  with contextlib.suppress(AttributeError):
    _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
