"""Stored scores (`evaluations/scores.json` and `scores.csv` of a model directory) and tables to print.

A record holds the scores of one checkpoint, task, split and identity of settings; it is not computed twice.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.console import table
from t5like.errors import UserError
from t5like.files import storage
from t5like.files.locks import LockHeld, hold
from t5like.tasks.metrics import benchmarks as benchmark_scores
from t5like.training.checkpoints.folders import PARAMS
from t5like.training.records.metrics import json_numbers

FOLDER = "evaluations"
Score = Callable[[str, Mapping[str, float]], float]
_WAIT = 60.0  # seconds; evaluations hold the lock only briefly


@dataclasses.dataclass(frozen=True)
class Record:
  """The scores of one checkpoint on one task."""

  step: int | None  # None: a model without steps
  checkpoint: str  # identifies the checkpoint: a step may be written again
  task: str
  split: str
  settings: str  # how it was evaluated, as text; '' for greedy decoding of all examples
  examples: int
  scores: dict[str, float]
  majority: dict[str, float] = dataclasses.field(default_factory=dict)  # of always giving the most common answer
  predictions: str = ""  # the file of answers
  data: str = ""  # identifies the examples and their scoring
  identity: dict[str, Any] | None = None  # how it was evaluated, by setting; None: written by an earlier version

  def is_same_evaluation(self, other: Record) -> bool:
    """Whether both are of the same evaluation of the same checkpoint."""
    return self.checkpoint == other.checkpoint and self.is_replaced_by(other)

  def is_replaced_by(self, other: Record) -> bool:
    """Whether `other` is of the same evaluation, perhaps of a checkpoint that was written again.

    Records without identity are compared by the text of settings.
    """
    for name in ("step", "task", "split", "data"):
      if getattr(self, name) != getattr(other, name):
        return False
    if self.identity is None or other.identity is None:
      return self.settings == other.settings
    return self.identity == other.identity


class Results:
  """The records of a model directory. Concurrent evaluations may write to it.

  shared  other models may have records in the folder, too: no checkpoint is taken for an older one of the same step
  """

  def __init__(self, folder: Path, shared: bool = False):
    self.folder, self._shared = folder, shared
    self.json, self.csv = folder / "scores.json", folder / "scores.csv"

  def records(self) -> list[Record]:
    if not self.json.is_file():
      return []
    try:
      return [_from_json(record) for record in storage.read_json(self.json, list)]
    except (ValueError, TypeError) as error:
      raise UserError("cannot read the earlier scores", file=self.json, because=error, try_="move it away") from None

  def find(self, blank: Record) -> Record | None:
    """Returns the record of the same evaluation, if any."""
    return next((record for record in self.records() if record.is_same_evaluation(blank)), None)

  def add(self, record: Record) -> None:
    """Stores a record; replaces one of the same evaluation."""
    is_replaced = Record.is_same_evaluation if self._shared else Record.is_replaced_by
    advice = "free some space, or --out=DIR, another folder"
    with self._locked(), storage.write_errors("scores", folder=self.folder, try_=advice):
      kept = [old for old in self.records() if not is_replaced(old, record)]
      records = sorted([*kept, record], key=lambda r: (-1 if r.step is None else r.step, r.task, r.split, r.settings))
      text = json.dumps([_to_json(record) for record in records], indent=2, ensure_ascii=False, allow_nan=False)
      storage.write_atomic(self.csv, csv_text(records))
      # Last: an evaluation that is killed before is repeated, and both are written.
      storage.write_atomic(self.json, f"{text}\n")

  @contextlib.contextmanager
  def _locked(self) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
      try:
        stack.enter_context(hold(self.folder / ".lock", stale_after_seconds=_WAIT, wait=_WAIT))
      except LockHeld as other:
        raise UserError(
          "timed out waiting for another evaluation to release the scores", folder=self.folder, holder=other.holder
        ) from None
      except OSError as error:
        raise UserError(
          "cannot write scores", folder=self.folder, because=error.strerror, try_="--out=DIR, another folder"
        ) from None
      yield


def _to_json(record: Record) -> dict[str, Any]:
  numbers = {"scores": json_numbers(record.scores), "majority": json_numbers(record.majority)}
  return dataclasses.asdict(record) | numbers


def _from_json(record: dict[str, Any]) -> Record:
  read = Record(**record)
  numbers = lambda scores: {name: math.nan if value is None else value for name, value in scores.items()}  # noqa: E731
  return dataclasses.replace(read, scores=numbers(read.scores), majority=numbers(read.majority))


def csv_text(records: Iterable[Record]) -> str:
  """Returns CSV with one line per metric."""
  out = io.StringIO()
  writer = csv.writer(out, lineterminator="\n")
  writer.writerow(["step", "task", "split", "settings", "examples", "metric", "score", "always_commonest"])
  for r in records:
    for metric, score in r.scores.items():
      step = "" if r.step is None else r.step
      writer.writerow([step, r.task, r.split, r.settings, r.examples, metric, score, r.majority.get(metric, "")])
  return out.getvalue()


def checkpoint_identity(checkpoint: Path) -> str:
  """Returns a digest of file names and sizes; Orbax uses new file names for each save."""
  if storage.is_remote(checkpoint):
    files = [f"{PARAMS}/{name} {info['size']}" for name, info in (checkpoint / PARAMS).files().items()]
  else:
    files = sorted(f"{p.relative_to(checkpoint)} {p.stat().st_size}" for p in (checkpoint / PARAMS).rglob("*"))
  return f"{zlib.crc32(chr(10).join(files).encode()):08x}"


def averages(
  scores_by_task: Mapping[str, Mapping[str, float]], score: Score = benchmark_scores.task_score
) -> dict[str, float]:
  """Returns the mean over tasks, and the GLUE and SuperGLUE averages of the T5 paper if all tasks are present."""
  scored = {task: scores for task, scores in scores_by_task.items() if scores}
  found = {}
  if len(scored) > 1:
    found[f"average of {len(scored)} tasks"] = sum(score(t, s) for t, s in scored.items()) / len(scored)
  for name, prefix, average in (
    ("GLUE average", "glue_", benchmark_scores.glue_average),
    ("SuperGLUE average", "super_glue_", benchmark_scores.super_glue_average),
  ):
    with contextlib.suppress(UserError):  # tasks are missing
      found[name] = average({t: s for t, s in scored.items() if t.startswith(prefix)})
  return found


def scores_table(records: Sequence[Record], score: Score = benchmark_scores.task_score) -> str:
  """Formats tasks with their metrics, baselines and averages. `score` picks the value of a task for averages."""
  with_baseline = any(record.majority for record in records)
  rows = [("task", "examples", "metric", "score", "majority baseline" if with_baseline else "")]
  for record in records:
    for number, (metric, value) in enumerate(record.scores.items()):
      first = (record.task, f"{record.examples:,}") if number == 0 else ("", "")
      baseline = f"{record.majority[metric]:.2f}" if metric in record.majority else ""
      rows.append((*first, metric, _number(value), baseline))
    if not record.scores:
      rows.append((record.task, f"{record.examples:,}", "none: targets are withheld", "", ""))
  for name, value in averages({record.task: record.scores for record in records}, score).items():
    rows.append((name, "", "", _number(value), ""))
  return table(rows, right=(1, 3, 4), indent="  ")


def steps_table(records: Sequence[Record], score: Score = benchmark_scores.task_score) -> str:
  """Formats the scores of each checkpoint, per task and on average."""
  by_step: dict[int | None, dict[str, Record]] = {}
  for record in records:
    by_step.setdefault(record.step, {})[record.task] = record
  tasks = list(dict.fromkeys(record.task for record in records if record.scores))
  rows = [("step", *tasks, *(["average"] if len(tasks) > 1 else []))]
  for step, found in sorted(by_step.items(), key=lambda item: item[0] or 0):
    values = [score(task, found[task].scores) if task in found else None for task in tasks]
    if len(tasks) > 1:
      values.append(None if None in values else sum(values) / len(values))
    rows.append((f"{step:,}" if step is not None else "", *("" if v is None else _number(v) for v in values)))
  return table(rows, right=range(len(rows[0])), indent="  ")


def _number(value: float) -> str:
  if isinstance(value, int) or 1000 <= abs(value) < 1e7:
    return f"{value:,.0f}"
  return f"{value:.4g}" if abs(value) >= 1000 else f"{value:.2f}" if abs(value) >= 1 or not value else f"{value:.4f}"
