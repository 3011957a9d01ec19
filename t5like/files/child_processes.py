"""Child processes that receive the signals of this process and exit with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_PARENT_VARIABLE = "T5LIKE_PARENT"
_LIBRARY = ctypes.CDLL(None)  # loaded before any fork


def ending(status: int | None) -> str:
  """Describes how a process ended, from the status that Python reports: negative for a signal."""
  if status is None or status >= 0:
    return f"status {status}"
  name = signal.Signals(-status).name
  return f"{name}, possibly out of memory" if name == "SIGKILL" else name


@contextlib.contextmanager
def without_main() -> Iterator[None]:
  """Lets multiprocessing start a process that does not import the main module: a script would run again in it."""
  main = sys.modules["__main__"]
  sys.modules["__main__"] = types.ModuleType("__main__")
  try:
    yield
  finally:
    sys.modules["__main__"] = main


class Children:
  """While active, forwards SIGINT and SIGTERM to all running children; `received_signal` is the last one."""

  def __init__(self):
    self.received_signal: int | None = None
    self._running: list[subprocess.Popen] = []
    self._previous: Mapping[int, object] = {}

  def __enter__(self) -> Children:
    self._previous = {number: signal.signal(number, self._forward) for number in (signal.SIGINT, signal.SIGTERM)}
    return self

  def __exit__(self, *unused: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def start(self, command: Sequence[str], **options: object) -> subprocess.Popen:
    """Starts a child in a new process group, so that Ctrl-C reaches only this process, which forwards it once.

    Call it from the main thread: Linux treats the end of the thread that started a child as its parent's death.
    """
    child = subprocess.Popen(command, process_group=0, preexec_fn=_end_with_parent, **options)
    self._running.append(child)
    if self.received_signal is not None:  # it arrived while the child was starting
      child.send_signal(self.received_signal)
    return child

  def reap(self, child: subprocess.Popen) -> None:
    """Forgets a child that has exited and kills its remaining descendants, which could hold devices and memory."""
    self._running.remove(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(child.pid, signal.SIGKILL)

  def sleep(self, seconds: float) -> bool:
    """Sleeps until a signal arrives; returns whether one did."""
    deadline = time.monotonic() + seconds
    while self.received_signal is None and (left := deadline - time.monotonic()) > 0:
      time.sleep(min(left, 0.2))
    return self.received_signal is not None

  def _forward(self, number: int, frame: object) -> None:
    self.received_signal = number
    for child in self._running:
      child.send_signal(number)


def shell_status(status: int) -> int:
  """Converts Popen's exit status to a shell's: 128 plus the number of the signal that killed the child."""
  return status if status >= 0 else 128 - status


def bound_environment() -> dict[str, str]:
  """Returns the environment for a child that calls `exit_with_parent` (preexec_fn is unsafe once JAX is running)."""
  return {**os.environ, _PARENT_VARIABLE: str(os.getpid())}


def exit_with_parent() -> None:
  """Makes this process exit when its parent does, if it was started with `bound_environment`."""
  parent = os.environ.pop(_PARENT_VARIABLE, None)
  if parent is not None:
    end_with_process(int(parent), signal.SIGTERM)


def end_with_process(parent: int, number: int) -> None:
  """Ends this child by a signal when its parent dies, or now if it has died. Linux only."""
  _end_with_parent(number)
  if os.getppid() != parent:
    signal.raise_signal(number)


def _end_with_parent(number: int = signal.SIGTERM) -> None:
  """Has the kernel send a signal to this child when its parent dies."""
  with contextlib.suppress(AttributeError):
    _LIBRARY.prctl(_PR_SET_PDEATHSIG, number)
