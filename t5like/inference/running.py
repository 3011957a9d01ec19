"""Answers rows window by window, in batches of similar length, and writes the answers in order."""

from __future__ import annotations

import collections
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from t5like.console import ProgressLine, duration, warn
from t5like.errors import RunError, UserError
from t5like.inference.batching import BatchPlanner, RowBatch
from t5like.inference.jobs import Answer, Job, Prepared
from t5like.inference.memory import NotEnoughMemory, answer_in_parts
from t5like.inference.outputs import JsonLines, VectorFile
from t5like.inference.rows import RejectedRow, Row, Rows, reject, windows
from t5like.parallel.process_zero import run_on_process_zero

# Batches per window at most. Rows of similar length are grouped within a window, which is written when it is complete:
# larger windows need less padding, but a kill loses more work. A window should take about a minute.
WINDOW = 16
_FAST, _SLOW = 15.0, 60.0  # seconds
_MAX_REPORTED = 10  # rejected rows reported on the screen; the output has all of them
_PIPE_WAIT = 0.2  # seconds to wait for more rows from a pipe


class Progress:
  """Reports rows done, speed, ETA and rejected rows on stderr."""

  def __init__(self, total: int | None, done: int, unit: str):
    self._line = ProgressLine(sys.stderr)
    self._total, self._first, self._unit = total, done, unit
    self._started = time.monotonic()
    self._tokens = 0
    self.rows, self._rejected = done, 0

  def add(self, rows: int, tokens: int) -> None:
    self.rows, self._tokens = self.rows + rows, self._tokens + tokens
    if self.rows != self._total:  # `end` prints the last line
      self._line.show(self._text())

  def reject(self, rejected: Sequence[RejectedRow]) -> None:
    self._line.end_line()
    for row in rejected:
      self._rejected += 1
      if self._rejected <= _MAX_REPORTED:
        warn(f"rejected: {row.location}: {row.reason}")
      elif self._rejected == _MAX_REPORTED + 1:
        warn("more rows were rejected; see the output")

  def end(self) -> None:
    if self.rows > self._first:
      self._line.show(self._text(), final=True)

  def _text(self) -> str:
    spent = max(time.monotonic() - self._started, 1e-9)
    new = self.rows - self._first
    text = f"{self.rows:,}" + (f"/{self._total:,}" if self._total is not None else "") + " rows"
    text += f"   {self._tokens / spent:,.0f} {self._unit}/s"
    left = (self._total or 0) - self.rows
    return text + (f"   ETA {duration(spent / new * left)}" if new and left > 0 else "")


class WindowSize:
  """The number of rows per window: starts at one batch and doubles while windows are fast."""

  def __init__(self, batch_size: int):
    self._batch_size, self._batches = batch_size, 1

  def rows(self) -> int:
    return self._batches * self._batch_size

  def update(self, seconds: float) -> None:
    """Adapts to the duration of the last window. Process 0 decides, as all processes need the same windows."""
    self._batches = run_on_process_zero(lambda: self._next(seconds))

  def _next(self, seconds: float) -> int:
    if seconds < _FAST:
      return min(2 * self._batches, WINDOW)
    return max(self._batches // 2, 1) if seconds > _SLOW else self._batches


def run_rows(
  job: Job,
  rows: Rows,
  output: JsonLines | VectorFile,
  batch_size: int,
  strict: bool,
  total: int | None,
  streaming: bool = False,
) -> int:
  """Answers all rows that are not in the output yet; returns the number of rejected rows.

  `streaming`: rows come from a pipe, at any time.
  """
  is_writer = jax.process_index() == 0
  done = run_on_process_zero(lambda: output.resume(rows))
  if not is_writer:
    collections.deque(itertools.islice(rows, done), maxlen=0)
  if done:
    warn(f"resuming after {done:,} rows")
  progress = Progress(total, done, job.unit)
  window_size, planner = WindowSize(batch_size), job.planner(batch_size)
  for window in windows(rows, window_size.rows, _PIPE_WAIT if streaming else None):
    started = time.monotonic()
    entries, answers, rejected = answer_window(job, window, planner, progress, strict)
    if is_writer and entries:
      output.write(entries, answers)
    done += len(entries)
    window_size.update(time.monotonic() - started)
    if rejected:
      progress.end()
      raise _stopped(rejected, done)
  progress.end()
  if not done:
    raise UserError("the input is empty")
  if is_writer:
    output.finish()
  rejected = run_on_process_zero(lambda: output.rejected)
  if rejected:
    warn(f"{rejected:,} of {done:,} rows were rejected; see the output")
  return rejected


def answer_window(
  job: Job, window: Sequence[Row | RejectedRow], planner: BatchPlanner, progress: Progress, strict: bool
) -> tuple[list[Row | RejectedRow], list[Answer | None], RejectedRow | None]:
  """Answers the rows of a window.

  Returns the rows (or rejections), their answers, and None; if `strict`, those before the first rejected row, and that
  row.
  """
  entries = _prepared(job, window)
  stop = _first_rejected(entries) if strict else len(entries)
  entries, rest = entries[:stop], entries[stop:]
  rejected = [entry for entry in entries if isinstance(entry, RejectedRow)]
  progress.reject(rejected)
  answers: dict[int, Any] = {}
  for i, found in _batch_answers(job, entries, planner):
    if isinstance(found, NotEnoughMemory):
      entries[i] = _out_of_memory(entries[i], found, job.limits.field)
      rejected.append(entries[i])
      progress.reject(rejected[-1:])
    else:
      answers[i], tokens = found
      progress.add(1, tokens)
  if strict:
    entries, rest = entries[: (stop := _first_rejected(entries))], [*entries[stop:], *rest]
  elif rejected:
    progress.add(len(rejected), 0)
  rows = [entry if isinstance(entry, RejectedRow) else entry.row for entry in entries]
  return rows, [answers.get(i) for i in range(len(rows))], rest[0] if rest else None


def answer_all(job: Job, rows: Sequence[Row], batch_size: int) -> list[Answer]:
  """Returns the answers to all rows, in order. Raises UserError if one cannot be answered."""
  if not rows:
    return []
  entries = job.prepare(rows)
  if (first := _first_rejected(entries)) < len(entries):
    rejected = entries[first]
    raise UserError(f"{rejected.location}: {rejected.why}", try_="truncate=True" if rejected.remedy else "")
  answers: dict[int, Answer] = {}
  for i, found in _batch_answers(job, entries, job.planner(batch_size)):
    if isinstance(found, NotEnoughMemory):
      raise UserError(f"{entries[i].row.location}: {describe_out_of_memory(entries[i], found)}", try_="a shorter text")
    answers[i] = found[0]
  return [answers[i] for i in range(len(rows))]


def _batch_answers(
  job: Job, entries: Sequence[Prepared | RejectedRow], planner: BatchPlanner
) -> Iterator[tuple[int, tuple[Answer, int] | NotEnoughMemory]]:
  """Answers the prepared entries in batches of similar length; yields (index, answer)."""
  good = [i for i, entry in enumerate(entries) if isinstance(entry, Prepared)]
  for batch in planner.plan([entries[i].length for i in good]):
    numbers = [good[n] for n in batch.rows]

    def answer(part: Sequence[int], batch: RowBatch = batch) -> list[tuple[Answer, int]]:
      shape = planner.shape_for(part, batch, max(entries[i].length for i in part))
      return job.answer([entries[i] for i in part], shape)

    yield from zip(numbers, answer_in_parts(numbers, answer), strict=True)


def _first_rejected(entries: Sequence[Prepared | RejectedRow]) -> int:
  return next((i for i, entry in enumerate(entries) if isinstance(entry, RejectedRow)), len(entries))


def _out_of_memory(prepared: Prepared, problem: NotEnoughMemory, field: str) -> RejectedRow:
  return reject(
    prepared.row, describe_out_of_memory(prepared, problem), field, remedy="--max_inputs=N --truncate cuts it"
  )


def describe_out_of_memory(prepared: Prepared, problem: NotEnoughMemory) -> str:
  return f"{prepared.length:,} tokens do not fit into device memory, even as a batch of one ({problem})"


def _prepared(job: Job, window: Sequence[Row | RejectedRow]) -> list[Prepared | RejectedRow]:
  ready = iter(job.prepare([row for row in window if isinstance(row, Row)]))
  return [next(ready) if isinstance(row, Row) else row for row in window]


def _stopped(row: RejectedRow, done: int) -> UserError:
  """Returns the error of --strict at a rejected row."""
  kind = RunError if done else UserError
  return kind(
    f"{row.location}: {row.reason}",
    done=f"{done:,} rows before it" if done else "",
    try_="fix it and run the command again, or drop --strict to skip it",
  )
