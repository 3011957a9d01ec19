"""Answers the rows of a file or a task with a model, and continues an output file that was left unfinished."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from t5like.console import warn
from t5like.errors import InvalidSetting, UserError
from t5like.files import storage
from t5like.inference import outputs
from t5like.inference import rows as row_files
from t5like.inference.job_settings import Generate, JobSettings, Reading
from t5like.inference.jobs import Limits
from t5like.inference.model import Model
from t5like.inference.running import run_rows
from t5like.inference.task_caches import task_caches
from t5like.parallel.process_zero import run_on_process_zero

_SPARE_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
  """What to answer, how, and where answers go. Rows come from `input` or from `task`."""

  job: JobSettings = dataclasses.field(default_factory=Generate)
  input: str | None = None  # a local file; "-" is standard input
  format: str | None = None  # "text" or "jsonl"; None: by the file's name
  field: str | None = None  # of JSON lines, with the text
  task: str | None = None
  split: str = "validation"
  examples: int = 0  # of the task, at most; 0: all
  modules: Sequence[str] = ()  # that register the task
  cache_dir: str | None = None
  max_inputs: int | None = None  # tokens of a row
  truncate: bool = False  # cut longer rows instead of refusing them
  strict: bool = False  # stop at the first row that cannot be answered
  output: str | None = None  # None: standard output
  overwrite: bool = False
  batch_size: int = 32

  def __post_init__(self):
    for name, least in (("batch_size", 1), ("examples", 0), ("max_inputs", 1)):
      value = getattr(self, name)
      if value is not None and value < least:
        raise InvalidSetting(f"{name}={value} cannot work", expected=f"{least} or more")

  @property
  def form(self) -> str:
    """The form of the rows: "task", "text" or "jsonl"."""
    return "task" if self.task else row_files.input_format(self.input, self.format)

  def reading(self, form: str) -> Reading:
    limits = Limits(self.max_inputs, self.truncate, self.field or row_files.TEXT_FIELD)
    return Reading(limits, self.batch_size, self.strict, form)


def answer_rows(model: Model, settings: InferenceSettings) -> int:
  """Answers all rows that the output does not have yet; returns the number of rows that were refused.

  The output file is continued where its model and settings are the same, and refused otherwise.
  """
  reading = settings.reading(settings.form)
  rows, total = _rows(model, settings, reading)
  path = storage.as_path(settings.output) if settings.output else None
  if path:
    storage.check_reachable(path, "--output")
  header = _header(model, settings.job, reading.limits) if path else {}

  def take_file() -> int:
    stack.enter_context(outputs.sole_writer(path))
    if not settings.overwrite:
      outputs.check_header(path, header)
    return 0

  with contextlib.ExitStack() as stack:
    if path:
      run_on_process_zero(take_file)
    job = settings.job.build(model, reading)
    if path:
      run_on_process_zero(lambda: outputs.begin_file(path, header, settings.overwrite) or 0)
    if path and path.suffix == ".npy":
      output = outputs.VectorFile(path, job.width)
    else:
      output = outputs.JsonLines(path, reading.limits.field)
    stack.callback(output.close)
    waits = reading.form != "task" and not row_files.is_regular(settings.input)
    try:
      return run_rows(job, rows, output, settings.batch_size, settings.strict, total, waits)
    except KeyboardInterrupt:
      if path:
        warn("\nthe same command goes on where this one was")
      raise


def vocabulary_doubts(model: Model) -> list[str]:
  """Reasons to doubt that a vocabulary is the model's own.

  An embedding has some rows more than the vocabulary has ids, to divide well; not thousands. And Hugging Face's
  configuration has the ids at which outputs end.
  """
  rows, ids, name = model.config.vocab_size, model.vocabulary.vocab_size, model.vocabulary_name
  doubts = []
  if rows - ids > _SPARE_ROWS:
    doubts.append(f"is this the right vocabulary? {name} has {ids:,} ids, the model {rows:,} (--vocabulary=...)")
  ends, end = model.source.configured_ends(), model.vocabulary.eos_id
  if ends and end not in ends:
    configured = ", ".join(map(str, sorted(ends)))
    doubts.append(f"outputs end at id {end} of {name}; the model's own configuration says {configured}")
  return doubts


def _rows(model: Model, settings: InferenceSettings, reading: Reading) -> tuple[row_files.Rows, int | None]:
  """The rows, and their number where it is known."""
  if reading.form != "task":
    if settings.field and reading.form == "text":
      raise UserError(f"--field={settings.field}: lines of text have no fields", try_="--format=jsonl")
    total = row_files.count_lines(settings.input)
    if total == 0:
      raise UserError(f"{settings.input} is empty: there are no rows to answer")
    return row_files.read_rows(settings.input, reading.form, reading.limits.field), total
  with _standard_output_aside():
    caches = task_caches(model, settings.cache_dir, settings.modules)
    members = caches.open_or_build(settings.task, settings.split)
  row_files.check_task(members, model.kind)
  total = sum(min(settings.examples or m.cache.examples, m.cache.examples) for m in members)
  return row_files.task_rows(members, model.vocabulary, settings.examples), total


@contextlib.contextmanager
def _standard_output_aside() -> Iterator[None]:
  """Sends what is printed to standard error, by other processes too: standard output is for answers."""
  sys.stdout.flush()
  kept = os.dup(1)
  os.dup2(2, 1)
  try:
    with contextlib.redirect_stdout(sys.stderr):
      yield
  finally:
    os.dup2(kept, 1)
    os.close(kept)


def _header(model: Model, job: JobSettings, limits: Limits) -> dict[str, dict[str, Any]]:
  """What must be the same when a file is continued."""
  what = {"embed": None, "candidates_field": None, **dataclasses.asdict(limits), **job.identity(model)}
  weights = model.identity() | {"average": model.average, "dtype": model.config.compute_dtype}
  return {"model": weights, "settings": what}
