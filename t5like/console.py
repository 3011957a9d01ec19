"""The live line: one line that rewrites itself in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

import jax


def say(text: str) -> None:
  """A line of output; on several hosts the first one speaks for all."""
  if text and jax.process_index() == 0:
    print(text, flush=True)


def warn(text: str) -> None:
  """Prints a line to standard error, on the first host: standard output may be the result of a command."""
  if jax.process_index() == 0:
    print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
  """1h02m, 3m20s or 12s."""
  seconds = int(max(seconds, 0))
  if seconds >= 3600:
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
  return f"{seconds // 60}m{seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"


class ProgressLine:
  """Shows `step 120/500  loss 4.312  ...`; in a log file at most once in `log_every` seconds, on the first host."""

  def __init__(self, out: TextIO | None = None, log_every: float = 10.0):
    self._out = sys.stdout if out is None else out
    self._live = self._out.isatty()
    self._log_every = log_every
    self._last = -float("inf")
    self._width = 0

  def show(self, text: str, final: bool = False) -> None:
    if jax.process_index() != 0:
      return
    now = time.monotonic()
    if self._live:
      end = "\n" if final else ""
      self._out.write(f"\r{text:<{self._width}}{end}")
      self._width = 0 if final else len(text)
    elif final or now - self._last >= self._log_every:
      self._out.write(text + "\n")
      self._last = now
    self._out.flush()

  def leave(self) -> None:
    """Ends the live line, so that other output starts on a line of its own."""
    if self._live and self._width:
      self._out.write("\n")
      self._width = 0
