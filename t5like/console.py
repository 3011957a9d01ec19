"""Console output: lines, progress, tables, durations, sizes and colors. JAX is only imported to find the first host."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Container, Mapping, Sequence
from typing import TextIO

from t5like.errors import for_caller

_COLORS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35"}


def say(text: str) -> None:
  """Prints a line, on the first host only."""
  if text and _is_first_host():
    print(for_caller(text), flush=True)


def warn(text: str) -> None:
  """Prints a line to stderr, on the first host only; stdout may carry the result of a command."""
  if _is_first_host():
    print(for_caller(text), file=sys.stderr, flush=True)


def _is_first_host() -> bool:
  import jax

  return jax.process_index() == 0


class ProgressLine:
  """Shows `step 120/500  loss 4.312  ...`: one line that is rewritten in a terminal, occasional lines in a log."""

  def __init__(
    self, out: TextIO | None = None, log_every: float = 10.0, eager: bool = True, first_host_only: bool = True
  ):
    """Creates a progress line.

    Args:
      out: stdout by default.
      log_every: minimum number of seconds between two lines in a log.
      eager: whether a log gets its first line immediately, instead of after `log_every` seconds.
      first_host_only: must be False if JAX must not initialize devices, as in the process that builds a token cache.
    """
    self._out = sys.stdout if out is None else out
    self._live = self._out.isatty()
    self._log_every = log_every
    self._last = -float("inf") if eager else time.monotonic()
    self._width = 0
    self._first_host_only = first_host_only

  def __enter__(self) -> ProgressLine:
    return self

  def __exit__(self, *unused: object) -> None:
    self.end_line()

  def show(self, text: str, final: bool = False) -> None:
    if self._first_host_only and not _is_first_host():
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

  def end_line(self) -> None:
    """Ends the live line, so that other output starts on a new line."""
    if self._live and self._width:
      self._out.write("\n")
      self._width = 0


def table(rows: Sequence[Sequence[str]], right: Container[int] = (), indent: str = "") -> str:
  """Formats rows of cells as aligned columns, one line per row; the columns in `right` are right-aligned."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = (
    "  ".join(f"{cell:>{widths[i]}}" if i in right else f"{cell:<{widths[i]}}" for i, cell in enumerate(row))
    for row in rows
  )
  return "\n".join(f"{indent}{line}".rstrip() for line in lines)


def duration(seconds: float, spelled: bool = False) -> str:
  """Formats a duration as 1h02m, 3m20s or 12s; if `spelled`, as 1 h 02 min, 3 min 20 s or 12 s."""
  hour, minute, second = (" h ", " min ", " s") if spelled else ("h", "m", "s")
  minutes, rest = divmod(int(max(seconds, 0)), 60)
  if minutes >= 60:
    return f"{minutes // 60}{hour}{minutes % 60:02d}{minute}".rstrip()
  return f"{minutes}{minute}{rest:02d}{second}" if minutes else f"{rest}{second}"


def byte_size(count: int) -> str:
  """Formats a number of bytes in decimal units: 1.5 GB."""
  return _scaled(count, {"GB": 1e9, "MB": 1e6, "kB": 1e3}) or f"{count} bytes"


def memory_size(count: float) -> str:
  """Formats a number of bytes in binary units: 1.5 GiB."""
  return _scaled(count, {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20}) or f"{count / 1024:.1f} KiB"


def _scaled(count: float, units: Mapping[str, float]) -> str:
  return next((f"{count / factor:.1f} {unit}" for unit, factor in units.items() if count >= factor), "")


def in_color() -> bool:
  """Returns whether stdout is a terminal and NO_COLOR is not set (no-color.org)."""
  return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, color: str) -> str:
  return f"\033[{_COLORS[color]}m{text}\033[0m" if in_color() else text
