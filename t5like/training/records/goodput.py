"""Where the wall time of a run went, and what its restarts cost."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.console import duration, table
from t5like.files import storage
from t5like.training.records.metrics import cannot_write

FILE = "goodput.jsonl"
STEPS = "steps"  # the category that is good: all else is what a run costs besides
STARTING = "starting up"
_REST = "everything else"
_RUNNING = "running"


def seconds_since_start() -> float:
  """Age of this process, imports included; 0 where the system does not tell."""
  try:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    began = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # starttime, in ticks since boot
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - began, 0.0)
  except (OSError, ValueError, IndexError, AttributeError):
    return 0.0


class Goodput:
  """Seconds by category, from the start of the process, or from now where it has done other work before.

  All time up to the first `spent_on` is starting up. A span inside another counts for itself alone. To be used from
  one thread. `device_share` is what this process has of its devices, where others work on them too.
  """

  def __init__(self, from_now: bool = False, device_share: float = 1.0):
    age = 0.0 if from_now else seconds_since_start()
    self._began = time.monotonic() - age
    self._attempt = {"started": round(time.time() - age, 3), "process": os.getpid()}  # tells attempts apart
    if device_share != 1.0:
      self._attempt["device_share"] = device_share
    self._spent: dict[str, float] = {}
    self._open: list[_Span] = []
    self._starting: float | None = None
    self._lost = 0
    self._first_step: int | None = None

  @contextlib.contextmanager
  def spent_on(self, category: str) -> Iterator[None]:
    now = time.monotonic()
    if self._starting is None:
      self._starting = now - self._began
    span = _Span(category, now)
    self._open.append(span)
    try:
      yield
    finally:
      self._open.pop()
      seconds = time.monotonic() - span.began
      self._count(category, seconds - span.inside)
      if self._open:
        self._open[-1].inside += seconds

  def add(self, category: str, seconds: float) -> None:
    """Time that was measured elsewhere; the span it happened in does not count it again."""
    self._count(category, seconds)
    if self._open:
      self._open[-1].inside += seconds

  def resume(self, rows: Iterable[Mapping[str, Any]], model_dir: Path, first_step: int) -> int:
    """Notes how many steps are to be done again, and returns it: the earlier attempts are known to have done them.

    `rows` are those of metrics.jsonl before MetricWriter forgets the rows of those steps.
    """
    reached = [row["step"] for row in rows if row["kind"] == "train"]
    reached += [attempt["last_step"] for attempt in read_attempts(model_dir / FILE)]
    lost = max(max(reached, default=0) - first_step, 0)
    self._lost += lost  # an attempt that goes back by itself adds to what it began with
    return lost

  def as_dict(self) -> dict[str, Any]:
    """Seconds in all, the share in steps, and seconds by category, which add up to all."""
    now = time.monotonic()
    total = now - self._began
    spent = {STARTING: total if self._starting is None else self._starting} | self._spent
    inner = 0.0  # spans that are still open count as far as they have come
    for span in reversed(self._open):
      seconds = now - span.began
      spent[span.category] = spent.get(span.category, 0.0) + seconds - span.inside - inner
      inner = seconds
    rest = total - sum(spent.values())
    if rest > 1e-6:
      spent[_REST] = spent.get(_REST, 0.0) + rest
    return {"seconds": total, "share_in_steps": spent.get(STEPS, 0.0) / total, "spent": spent}

  def report(self, steps: int) -> str:
    """A table for people: all, the share in steps, and where the rest went, largest first."""
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
    """Adds a line on this attempt so far; the last one counts. `ended` says how, once it has.

    Written along with every checkpoint, it tells of attempts that were killed, too.
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
      raise cannot_write(path, error) from None

  def _count(self, category: str, seconds: float) -> None:
    self._spent[category] = self._spent.get(category, 0.0) + max(seconds, 0.0)


@dataclasses.dataclass
class _Span:
  category: str
  began: float
  inside: float = 0.0  # seconds that count elsewhere


def read_attempts(path: Path) -> list[dict[str, Any]]:
  """The last line of every attempt, in order; lines that a killed one left unfinished are passed over."""
  attempts: dict[tuple, dict[str, Any]] = {}
  if path.is_file():
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
      with contextlib.suppress(ValueError):
        line = storage.parse_json(text)
        if _is_attempt(line):
          attempts[line["started"], line["process"]] = line
  return sorted(attempts.values(), key=lambda line: line["started"])


def _is_attempt(line: Mapping[str, Any]) -> bool:
  """Whether a line is one that this file writes: another's must not end a run."""
  kinds = {name: (int, float) for name in ("started", "written", "seconds", "first_step", "last_step", "steps_lost")}
  kinds |= {"process": (str, int), "ended": (str,), "spent": (dict,)}
  if not all(type(line.get(name)) in kind for name, kind in kinds.items()):
    return False
  return all(type(seconds) in (int, float) for seconds in line["spent"].values())


def summary_of_attempts(path: Path) -> str:
  """What all attempts took together and what restarts cost; '' where there was one attempt only."""
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
    f"{len(attempts)} attempts, {_time(total)} in all, {(in_steps - twice) / total:.1%} of it in steps that counted",
    f"  {lost:,} steps were trained twice, about {_time(twice)}; between attempts {_time(sum(gaps))} were not trained",
  ]
  return "\n".join([*lines, _table(attempts)])


def _table(attempts: Sequence[Mapping[str, Any]]) -> str:
  rows = [("attempt", "steps", "wall time", "in steps", "done again", "ended")]
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
