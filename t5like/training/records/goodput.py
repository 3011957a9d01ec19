"""Goodput: wall time of a run by category, and the cost of its restarts."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.console import duration, table
from t5like.files import storage
from t5like.training.records.metrics import write_error

FILE = "goodput.jsonl"
STEPS = "steps"  # the productive category; everything else is overhead
STARTING = "starting up"
_REST = "everything else"
_RUNNING = "running"


def seconds_since_start() -> float:
  """Returns the age of this process, imports included; 0 where the system does not provide it."""
  try:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # starttime, in ticks since boot
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)
  except (OSError, ValueError, IndexError, AttributeError):
    return 0.0


class Goodput:
  """Seconds by category, from the start of the process, or from now if it has done other work before.

  All time before the first `spent_on` is startup. Nested spans are counted separately. For use by a single thread.
  `device_share` is this process's share of the devices, if others use them, too.
  """

  def __init__(self, from_now: bool = False, device_share: float = 1.0):
    age = 0.0 if from_now else seconds_since_start()
    self._started = time.monotonic() - age
    self._attempt = {"started": round(time.time() - age, 3), "process": os.getpid()}  # identifies the attempt
    if device_share != 1.0:
      self._attempt["device_share"] = device_share
    self._spent: dict[str, float] = {}
    self._open: list[_Span] = []
    self._starting: float | None = None
    self._lost = 0
    self._first_step: int | None = None

  def of_another_run(self) -> Goodput:
    """Returns the account of another run that trains in the same steps: the same time, but its own restarts."""
    other = copy.copy(self)
    other._lost, other._first_step = 0, None
    return other

  @contextlib.contextmanager
  def spent_on(self, category: str) -> Iterator[None]:
    now = time.monotonic()
    if self._starting is None:
      self._starting = now - self._started
    span = _Span(category, now)
    self._open.append(span)
    try:
      yield
    finally:
      self._open.pop()
      seconds = time.monotonic() - span.started
      self._count(category, seconds - span.nested)
      if self._open:
        self._open[-1].nested += seconds

  def add(self, category: str, seconds: float) -> None:
    """Adds time that was measured elsewhere; the enclosing span does not count it again."""
    self._count(category, seconds)
    if self._open:
      self._open[-1].nested += seconds

  def resume(self, rows: Iterable[Mapping[str, Any]], model_dir: Path, first_step: int) -> int:
    """Records and returns the number of steps that earlier attempts trained and this one must train again.

    `rows` are those of metrics.jsonl before MetricWriter drops the rows of those steps.
    """
    reached = [row["step"] for row in rows if row["kind"] == "train"]
    reached += [attempt["last_step"] for attempt in read_attempts(model_dir / FILE)]
    lost = max(max(reached, default=0) - first_step, 0)
    self._lost += lost  # accumulates over rollbacks within an attempt
    return lost

  def as_dict(self) -> dict[str, Any]:
    """Returns total seconds, the share in steps, and seconds by category, which add up to the total."""
    now = time.monotonic()
    total = now - self._started
    spent = {STARTING: total if self._starting is None else self._starting} | self._spent
    inner = 0.0  # open spans count up to now
    for span in reversed(self._open):
      seconds = now - span.started
      spent[span.category] = spent.get(span.category, 0.0) + seconds - span.nested - inner
      inner = seconds
    rest = total - sum(spent.values())
    if rest > 1e-6:
      spent[_REST] = spent.get(_REST, 0.0) + rest
    return {"seconds": total, "share_in_steps": spent.get(STEPS, 0.0) / total, "spent": spent}

  def report(self, steps: int) -> str:
    """Returns a table: wall time, the share in steps, and the other categories, largest first."""
    result = self.as_dict()
    total, spent = result["seconds"], dict(result["spent"])
    in_steps = spent.pop(STEPS, 0.0)
    rows = [(STEPS, in_steps), *sorted(spent.items(), key=lambda item: -item[1])]
    width = max(len(name) for name, _ in rows)
    speed = f", {in_steps / steps:.3g} s each" if steps else ""
    lines = [f"wall time {_time(total)}, {in_steps / total:.1%} of it in {steps:,} steps{speed}"]
    lines += [f"  {name:<{width}}  {_time(seconds):>8}  {seconds / total:>6.1%}" for name, seconds in rows]
    return "\n".join(lines)

  def write(self, path: Path, first_step: int, last_step: int, ended: str = _RUNNING) -> None:
    """Appends a line about this attempt so far; the last one counts. `ended` is how it ended, if it has.

    Called with every checkpoint, so that killed attempts are recorded, too.
    """
    result = self.as_dict()
    self._first_step = first_step if self._first_step is None else min(self._first_step, first_step)
    line = self._attempt | {
      "written": round(time.time(), 3),
      "first_step": self._first_step,
      "last_step": last_step,
      "ended": ended,
      "steps_lost": self._lost,
      "seconds": round(result["seconds"], 3),
      "spent": {name: round(seconds, 3) for name, seconds in result["spent"].items()},
    }
    try:
      storage.append_text(path, json.dumps(line) + "\n")
    except OSError as error:
      raise write_error(path, error) from None

  def _count(self, category: str, seconds: float) -> None:
    self._spent[category] = self._spent.get(category, 0.0) + max(seconds, 0.0)


@dataclasses.dataclass
class _Span:
  category: str
  started: float
  nested: float = 0.0  # seconds counted by inner spans


def read_attempts(path: Path) -> list[dict[str, Any]]:
  """Returns the last line of every attempt, in order, without unfinished lines of killed attempts."""
  lines = (line for line in storage.read_json_lines(path) if _is_attempt(line))
  attempts = {(line["started"], line["process"]): line for line in lines}
  return sorted(attempts.values(), key=lambda line: line["started"])


def _is_attempt(line: Mapping[str, Any]) -> bool:
  """Returns whether a line was written by `Goodput.write`: other lines must not break a run."""
  kinds = {name: (int, float) for name in ("started", "written", "seconds", "first_step", "last_step", "steps_lost")}
  kinds |= {"process": (str, int), "ended": (str,), "spent": (dict,)}
  if not all(type(line.get(name)) in kind for name, kind in kinds.items()):
    return False
  return all(type(seconds) in (int, float) for seconds in line["spent"].values())


def summary_of_attempts(path: Path) -> str:
  """Returns the total time of all attempts and the cost of restarts; '' for a single attempt."""
  attempts = read_attempts(path)
  if len(attempts) < 2:
    return ""
  total = sum(a["seconds"] for a in attempts)
  in_steps = sum(a["spent"].get(STEPS, 0.0) for a in attempts)
  steps = sum(max(a["last_step"] - a["first_step"], 0) for a in attempts)
  lost = sum(a["steps_lost"] for a in attempts)
  twice = in_steps / steps * min(lost, steps) if steps else 0.0
  gaps = [max(b["started"] - a["written"], 0.0) for a, b in zip(attempts, attempts[1:], strict=False)]
  lines = [
    f"{len(attempts)} attempts, {_time(total)} in total, {(in_steps - twice) / total:.1%} of it in useful steps",
    f"  {lost:,} steps were trained twice, about {_time(twice)}; {_time(sum(gaps))} passed between attempts",
  ]
  return "\n".join([*lines, _table(attempts)])


def _table(attempts: Sequence[Mapping[str, Any]]) -> str:
  rows = [("attempt", "steps", "wall time", "in steps", "repeated", "ended")]
  for number, attempt in enumerate(attempts, 1):
    killed = attempt["ended"] == _RUNNING and number < len(attempts)
    rows.append(
      (
        str(number),
        f"{attempt['first_step']:,} to {attempt['last_step']:,}",
        _time(attempt["seconds"]),
        f"{attempt['spent'].get(STEPS, 0.0) / max(attempt['seconds'], 1e-9):.1%}",
        f"{attempt['steps_lost']:,}",
        "killed" if killed else attempt["ended"],
      )
    )
  return table(rows, indent="  ")


def _time(seconds: float) -> str:
  return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)
