"""Detects a stalled run: dumps the stacks of all threads, prints an error and, if allowed, ends the process.

Time in which the process did not run at all (SIGSTOP, a suspended machine) does not count.
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
from collections.abc import Callable
from pathlib import Path

STALLED = 124  # exit status, as of `timeout`, for launchers that restart; SIGALRM if no Python code can run
_STDERR = 2


class Watchdog:
  """Dumps stacks and, if allowed, ends the process after `seconds` without a heartbeat; 0 disables it.

  Counts from the first heartbeat or from `arm`, so that startup and compilation may take longer.
  """

  def __init__(self, seconds: float, report: Path | None = None, end_process: Callable[[int], object] | None = None):
    """Takes a file for a copy of the stacks, and a function such as `os._exit` that ends the process.

    Without `end_process`, as in a notebook, a stall is reported again every `seconds`.
    """
    self._seconds, self._report, self._end_process = float(seconds), report, end_process
    self._poll = min(self._seconds / 4, 5.0)  # seconds between checks
    self._last: float | None = None  # the last heartbeat; None: not armed
    self._lock = threading.Lock()
    self._ended = threading.Event()
    self._last_resort = _LastResort(None if end_process is None else math.ceil(2 * self._poll) + 1)
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

  def heartbeat(self) -> None:
    """Records progress, such as the end of a step or of an evaluated batch. Costs nothing."""
    self._last = time.monotonic()

  def arm(self) -> None:
    """Starts the count, even if a thread never releases the GIL from now on."""
    with self._lock:
      self.heartbeat()
      if self._seconds > 0:
        self._last_resort.postpone(self._seconds + self._poll)

  def _watch(self) -> None:
    checked, resumed = time.monotonic(), False
    while not self._ended.wait(self._poll):
      since, checked = time.monotonic() - checked, time.monotonic()
      with self._lock:
        if resumed:  # a timer that expired while suspended may have set the alarm after the last check
          self._last_resort.cancel_alarm()
        if resumed := since > 2 * self._poll + 1.0:
          self._discount(since - self._poll)
        if self._last is None:
          continue
        self._last_resort.postpone(self._seconds + self._poll)
        if time.monotonic() - self._last < self._seconds:
          continue
      self._report_stall()
      if self._end_process is not None:
        self._end_process(STALLED)
      self.heartbeat()

  def _discount(self, seconds: float) -> None:
    """Discounts time in which this thread could not run: the process was suspended, or another thread held the GIL."""
    if self._last is not None and self._seconds > 0:
      self._last += seconds
      text = f"the process did not run for {seconds:,.0f} s (was it suspended?): that time does not count as a stall\n"
      os.write(_STDERR, text.encode())

  def _report_stall(self) -> None:
    """Dumps the stack of every thread, without waiting for any of them."""
    self._last_resort.postpone(10.0)  # in case the lines below hang, too
    faulthandler.dump_traceback(_STDERR, all_threads=True)
    copy = ""
    if self._report is not None:
      with contextlib.suppress(OSError):  # a full disk may be the cause of the stall
        self._report.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as file:  # faulthandler needs a descriptor: not for a store
          file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}: no progress in {self._seconds:g} seconds\n".encode())
          file.flush()
          faulthandler.dump_traceback(file, all_threads=True)
          file.seek(0)
          self._report.write_bytes(file.read())
        copy = f", and in {self._report}"
    ending = "" if self._end_process is None else f", ending it (status {STALLED})"
    text = (
      f"error: the run is stalled: no step ended in {self._seconds / 60:.3g} minutes{ending}; "
      f"the stacks of all threads are above{copy}\n"
      "  try  the same command, which resumes from the last checkpoint; if steps may take longer, "
      "--gin.WATCHDOG_MINUTES=..., 0 for no limit\n"
    )
    # Directly to the descriptor: a stuck thread may hold the lock of sys.stderr.
    os.write(_STDERR, text.encode())


class _LastResort:
  """Timers outside of Python, for a thread that never releases the GIL: a regular expression, an extension.

  Then no Python code runs, not even the watchdog. faulthandler's own thread still dumps the stacks, and a timer of the
  C library calls `alarm`: SIGALRM ends the process. It comes some seconds later, because timers also expire in a
  suspended process: once resumed, the watchdog has time to cancel the alarm. Without glibc, or if the process must not
  end, only the stacks are dumped.

  `faulthandler.dump_traceback_later(exit=True)` would not need ctypes, but ends a process that was suspended (SIGSTOP)
  as soon as it is resumed.
  """

  def __init__(self, grace: int | None):
    self._timer = None if grace is None else _make_timer(grace)

  def postpone(self, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, file=_STDERR)
    if self._timer is not None:
      _set_timer(self._timer, seconds + 0.5)

  def cancel_alarm(self) -> None:
    if self._timer is not None:
      signal.alarm(0)

  def cancel(self) -> None:
    faulthandler.cancel_dump_traceback_later()
    if self._timer is not None:
      _set_timer(self._timer, 0.0)


class _Event(ctypes.Structure):
  """`struct sigevent` of Linux, 64 bytes."""

  _fields_ = [
    ("value", ctypes.c_void_p),
    ("signal", ctypes.c_int),
    ("notify", ctypes.c_int),
    ("function", ctypes.c_void_p),
    ("attributes", ctypes.c_void_p),
    ("unused", ctypes.c_byte * 32),
  ]


class _Interval(ctypes.Structure):
  """`struct itimerspec`: interval and first expiry, in seconds and nanoseconds."""

  _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "first_s", "first_ns")]


_CALL_IN_A_THREAD = 2  # SIGEV_THREAD


def _make_timer(grace: int) -> ctypes.c_void_p | None:
  """Returns a timer, not started, that calls `alarm(grace)`; None if the C library has no timers."""
  try:
    library = ctypes.CDLL(None, use_errno=True)
    alarm = ctypes.cast(library.alarm, ctypes.c_void_p).value
    event = _Event(value=grace, notify=_CALL_IN_A_THREAD, function=alarm)
    timer = ctypes.c_void_p()
    status = library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
  except (AttributeError, OSError, TypeError):
    return None
  return timer if status == 0 else None


def _set_timer(timer: ctypes.c_void_p, seconds: float) -> None:
  interval = _Interval(first_s=int(seconds), first_ns=int(seconds % 1 * 1e9))
  ctypes.CDLL(None).timer_settime(timer, 0, ctypes.byref(interval), None)
