"""Finds a run that stands still: stacks of all threads, one line that says so, and the process ends if it may.

Time in which the whole process did not run (SIGSTOP, a suspended machine) does not count.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

STALLED = 124  # the exit status, as of `timeout`: launchers may start the run again; SIGALRM where no Python runs
_STDERR = 2


class Watchdog:
  """Writes stacks, and ends the process if it may, when `seconds` pass between two `beat`s; 0 switches it off.

  It counts from the first beat, or from `arm`, so that start-up and compilation may take their time.
  """

  def __init__(self, seconds: float, report: Path | None = None, end_process: Callable[[int], object] | None = None):
    """Takes a file for a copy of the stacks, and a function that ends the process with a status, as `os._exit`.

    Without `end_process`, as in a notebook, a stall is reported again after as many seconds.
    """
    self._seconds, self._report, self._end_process = float(seconds), report, end_process
    self._patience = min(self._seconds / 4, 5.0)  # between two looks
    self._last: float | None = None  # the last beat; None: not armed
    self._pauses = 0
    self._lock = threading.Lock()
    self._ended = threading.Event()
    self._last_resort = _LastResort(None if end_process is None else math.ceil(2 * self._patience) + 1)
    self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

  def __enter__(self) -> Watchdog:
    if self._seconds > 0:
      self._thread.start()
    return self

  def __exit__(self, *unused) -> None:
    self._ended.set()
    if self._thread.is_alive():
      self._thread.join()
    self._last_resort.cancel()

  def beat(self) -> None:
    """Something was done: a step ended, a batch was evaluated. Costs nothing."""
    self._last = time.monotonic()

  def arm(self) -> None:
    """Time counts from here, even for a thread that keeps the interpreter from now on."""
    with self._lock:
      self.beat()
      if self._seconds > 0 and not self._pauses:
        self._last_resort.postpone(self._seconds + self._patience)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Time in here does not count; it begins anew afterwards."""
    with self._lock:
      self._pauses += 1
      self._last_resort.cancel()
    try:
      yield
    finally:
      with self._lock:
        self._pauses -= 1
        if self._last is not None:
          self.beat()

  def _watch(self) -> None:
    looked, resumed = time.monotonic(), False
    while not self._ended.wait(self._patience):
      since, looked = time.monotonic() - looked, time.monotonic()
      with self._lock:
        if resumed:  # a timer that expired in a suspended process may have set the alarm after the last look
          self._last_resort.call_off()
        if resumed := since > 2 * self._patience + 1.0:
          self._forgive(since - self._patience)
        if self._last is None or self._pauses:
          continue
        self._last_resort.postpone(self._seconds + self._patience)
        if time.monotonic() - self._last < self._seconds:
          continue
      self._report_stall()
      if self._end_process is not None:
        self._end_process(STALLED)
      self.beat()

  def _forgive(self, seconds: float) -> None:
    """This thread should have run meanwhile: the process was suspended, or something kept the interpreter."""
    if self._last is not None and self._seconds > 0:
      self._last += seconds
      text = f"the process did not run for {seconds:,.0f} s (was it suspended?): that time does not count as a stall\n"
      os.write(_STDERR, text.encode())

  def _report_stall(self) -> None:
    """Writes what every thread is at, without waiting for any of them."""
    self._last_resort.postpone(10.0)  # should what follows hang too
    faulthandler.dump_traceback(_STDERR, all_threads=True)
    copy = ""
    if self._report is not None:
      with contextlib.suppress(OSError):  # a full disk may be why nothing goes on
        self._report.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as file:  # faulthandler needs a descriptor, which an object does not have
          file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}: nothing ended in {self._seconds:g} seconds\n".encode())
          file.flush()
          faulthandler.dump_traceback(file, all_threads=True)
          file.seek(0)
          self._report.write_bytes(file.read())
        copy = f", and in {self._report}"
    ending = "" if self._end_process is None else f", so it is ended (status {STALLED})"
    text = (
      f"error: the run stands still: no step ended in {self._seconds / 60:.3g} minutes{ending}; "
      f"what every thread was doing stands above{copy}\n"
      "  try  the same command, which goes on from the last checkpoint; if steps may take longer, "
      "--gin.WATCHDOG_MINUTES=..., 0 for no limit\n"
    )
    # Straight to the descriptor: a stuck thread may hold the lock of sys.stderr.
    os.write(_STDERR, text.encode())


class _LastResort:
  """Timers outside of Python, for a thread that never lets go of the interpreter: a regular expression, an extension.

  Then no Python runs, the watchdog's neither. faulthandler's own thread still writes the stacks, and a timer of the C
  library calls `alarm`: SIGALRM then ends the process. That comes some seconds later, and not at once, because timers
  also expire in a process that is suspended: when it is continued, the watchdog has time to call the alarm off.
  Without glibc, or where the process must not end, there are only the stacks.

  `faulthandler.dump_traceback_later(exit=True)` would do without ctypes, but ends a process that was suspended
  (SIGSTOP) as soon as it is continued.
  """

  def __init__(self, grace: int | None):
    self._timer = None if grace is None else _make_timer(grace)

  def postpone(self, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, file=_STDERR)
    if self._timer is not None:
      _set_timer(self._timer, seconds + 0.5)

  def call_off(self) -> None:
    if self._timer is not None:
      signal.alarm(0)

  def cancel(self) -> None:
    faulthandler.cancel_dump_traceback_later()
    if self._timer is not None:
      _set_timer(self._timer, 0.0)


class _Event(ctypes.Structure):
  """`struct sigevent` of Linux; 64 bytes in all."""

  _fields_ = [
    ("value", ctypes.c_void_p),
    ("signal", ctypes.c_int),
    ("notify", ctypes.c_int),
    ("function", ctypes.c_void_p),
    ("attributes", ctypes.c_void_p),
    ("unused", ctypes.c_byte * 32),
  ]


class _Interval(ctypes.Structure):
  """`struct itimerspec`: repetition and first expiry, in seconds and nanoseconds."""

  _fields_ = [(name, ctypes.c_long) for name in ("again_s", "again_ns", "first_s", "first_ns")]


_CALL_IN_A_THREAD = 2  # SIGEV_THREAD


def _make_timer(grace: int) -> ctypes.c_void_p | None:
  """A timer that calls `alarm(grace)`, not running yet; None where the C library has none."""
  try:
    library = ctypes.CDLL(None, use_errno=True)
    alarm = ctypes.cast(library.alarm, ctypes.c_void_p).value
    event = _Event(value=grace, notify=_CALL_IN_A_THREAD, function=alarm)
    timer = ctypes.c_void_p()
    made = library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
  except (AttributeError, OSError, TypeError):
    return None
  return timer if made == 0 else None


def _set_timer(timer: ctypes.c_void_p, seconds: float) -> None:
  interval = _Interval(first_s=int(seconds), first_ns=int(seconds % 1 * 1e9))
  ctypes.CDLL(None).timer_settime(timer, 0, ctypes.byref(interval), None)
