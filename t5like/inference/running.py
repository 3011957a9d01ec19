"""Answers rows: a window of them at a time, in batches of like length, and writes the answers in order."""

from __future__ import annotations

import collections
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from t5like.console import ProgressLine, duration
from t5like.console import warn as say
from t5like.errors import RunError, UserError
from t5like.inference.batching import BatchPlanner, RowBatch
from t5like.inference.jobs import Answer, Job, Prepared
from t5like.inference.outputs import JsonLines, VectorFile
from t5like.inference.room import NoRoom, answer_in_room
from t5like.inference.rows import Refused, Row, Rows, refuse, windows
from t5like.parallel.process_zero import run_on_process_zero

# Rows of like length are put together from so many batches at most, or from as many as take about a minute: rows are
# written when all of these are answered, and what is not written is lost by a kill.
WINDOW = 16
_SHORT, _LONG = 15.0, 60.0  # seconds
_NAMED = 10  # refused rows that are named on the screen; all are in the output
_PATIENCE = 0.2  # seconds that rows from a pipe wait for others


class Progress:
  """Rows done, speed and time left, on standard error; names refused rows."""

  def __init__(self, total: int | None, done: int, counts: str):
    self._line = ProgressLine(sys.stderr)
    self._total, self._first, self._counts = total, done, counts
    self._begin = time.monotonic()
    self._tokens = 0
    self.rows, self._refused = done, 0

  def add(self, rows: int, tokens: int) -> None:
    self.rows, self._tokens = self.rows + rows, self._tokens + tokens
    if self.rows != self._total:  # the last line is for `end`
      self._line.show(self._text())

  def refuse(self, refused: Sequence[Refused]) -> None:
    self._line.end_line()
    for row in refused:
      self._refused += 1
      if self._refused <= _NAMED:
        say(f"refused: {row.place}: {row.reason}")
      elif self._refused == _NAMED + 1:
        say("more rows are refused; the output says which and why")

  def end(self) -> None:
    if self.rows > self._first:
      self._line.show(self._text(), final=True)

  def _text(self) -> str:
    spent = max(time.monotonic() - self._begin, 1e-9)
    new = self.rows - self._first
    text = f"{self.rows:,}" + (f"/{self._total:,}" if self._total is not None else "") + " rows"
    text += f"   {self._tokens / spent:,.0f} {self._counts}/s"
    left = (self._total or 0) - self.rows
    return text + (f"   ETA {duration(spent / new * left)}" if new and left > 0 else "")


class Pace:
  """How many rows a window has. It begins with one batch, and doubles while windows are done quickly."""

  def __init__(self, batch_size: int):
    self._batch_size, self._batches = batch_size, 1

  def rows(self) -> int:
    return self._batches * self._batch_size

  def took(self, seconds: float) -> None:
    """The last window, so long. Clocks differ, and all processes need the same windows: the first one decides."""
    self._batches = run_on_process_zero(lambda: self._next(seconds))

  def _next(self, seconds: float) -> int:
    if seconds < _SHORT:
      return min(2 * self._batches, WINDOW)
    return max(self._batches // 2, 1) if seconds > _LONG else self._batches


def run_rows(
  job: Job,
  rows: Rows,
  output: JsonLines | VectorFile,
  batch_size: int,
  strict: bool,
  total: int | None,
  waits: bool = False,
) -> int:
  """Answers all rows that the output does not have yet; returns the number of refused ones.

  `waits`: rows come from a pipe, now and then.
  """
  is_writer = jax.process_index() == 0
  done = run_on_process_zero(lambda: output.begin(rows))
  if not is_writer:
    collections.deque(itertools.islice(rows, done), maxlen=0)
  if done:
    say(f"{done:,} rows are there already")
  progress = Progress(total, done, job.counts)
  pace, planner = Pace(batch_size), job.planner(batch_size)
  for window in windows(rows, pace.rows, _PATIENCE if waits else None):
    begin = time.monotonic()
    entries, answers, refused = answer_window(job, window, planner, progress, strict)
    if is_writer and entries:
      output.write(entries, answers)
    done += len(entries)
    pace.took(time.monotonic() - begin)
    if refused:
      progress.end()
      raise _stopped(refused, done)
  progress.end()
  if not done:
    raise UserError("the input is empty: there are no rows to answer")
  if is_writer:
    output.finish()
  refused = run_on_process_zero(lambda: output.refused)
  if refused:
    say(f"{refused:,} of {done:,} rows were refused: the output says why")
  return refused


def answer_window(
  job: Job, window: Sequence[Row | Refused], planner: BatchPlanner, progress: Progress, strict: bool
) -> tuple[list[Row | Refused], list[Answer | None], Refused | None]:
  """The rows of a window, the refused ones as such, and their answers; if `strict`, those before the first refused
  one, and that."""
  entries = _prepared(job, window)
  stop = _first_refused(entries) if strict else len(entries)
  entries, rest = entries[:stop], entries[stop:]
  refused = [entry for entry in entries if isinstance(entry, Refused)]
  progress.refuse(refused)
  answers: dict[int, Any] = {}
  for i, found in _batch_answers(job, entries, planner):
    if isinstance(found, NoRoom):
      entries[i] = _no_room(entries[i], found, job.limits.field)
      refused.append(entries[i])
      progress.refuse(refused[-1:])
    else:
      answers[i], tokens = found
      progress.add(1, tokens)
  if strict:
    entries, rest = entries[: (stop := _first_refused(entries))], [*entries[stop:], *rest]
  elif refused:
    progress.add(len(refused), 0)
  rows = [entry if isinstance(entry, Refused) else entry.row for entry in entries]
  return rows, [answers.get(i) for i in range(len(rows))], rest[0] if rest else None


def answer_all(job: Job, rows: Sequence[Row], batch_size: int) -> list[Answer]:
  """Returns the answers to all rows, in their order. Raises UserError where one cannot be answered."""
  if not rows:
    return []
  entries = job.prepare(rows)
  if (first := _first_refused(entries)) < len(entries):
    refused = entries[first]
    raise UserError(f"{refused.place}: {refused.why}", try_="truncate=True" if refused.remedy else "")
  answers: dict[int, Answer] = {}
  for i, found in _batch_answers(job, entries, job.planner(batch_size)):
    if isinstance(found, NoRoom):
      raise UserError(f"{entries[i].row.place}: {_no_room_for(entries[i], found)}", try_="a shorter text")
    answers[i] = found[0]
  return [answers[i] for i in range(len(rows))]


def _batch_answers(
  job: Job, entries: Sequence[Prepared | Refused], planner: BatchPlanner
) -> Iterator[tuple[int, tuple[Answer, int] | NoRoom]]:
  """Answers the prepared entries in batches of similar length; yields their numbers and answers."""
  good = [i for i, entry in enumerate(entries) if isinstance(entry, Prepared)]
  for batch in planner.plan([entries[i].length for i in good]):
    numbers = [good[n] for n in batch.rows]

    def answer(part: Sequence[int], batch: RowBatch = batch) -> list[tuple[Answer, int]]:
      shape = planner.shape_for(part, batch, max(entries[i].length for i in part))
      return job.answer([entries[i] for i in part], shape)

    yield from zip(numbers, answer_in_room(numbers, answer), strict=True)


def _first_refused(entries: Sequence[Prepared | Refused]) -> int:
  return next((i for i, entry in enumerate(entries) if isinstance(entry, Refused)), len(entries))


def _no_room(prepared: Prepared, problem: NoRoom, field: str) -> Refused:
  return refuse(prepared.row, _no_room_for(prepared, problem), field, remedy="--max_inputs=N --truncate cuts them")


def _no_room_for(prepared: Prepared, problem: NoRoom) -> str:
  return f"the devices have no room for {prepared.length:,} tokens, even in a batch of their own ({problem})"


def _prepared(job: Job, window: Sequence[Row | Refused]) -> list[Prepared | Refused]:
  ready = iter(job.prepare([row for row in window if isinstance(row, Row)]))
  return [next(ready) if isinstance(row, Row) else row for row in window]


def _stopped(row: Refused, done: int) -> UserError:
  """At a row that cannot be answered, as --strict asks."""
  kind = RunError if done else UserError
  return kind(
    f"{row.place}: {row.reason}",
    done=f"{done:,} rows before it" if done else "",
    try_="mend it and give the command again, or without --strict to go on with the rest",
  )
