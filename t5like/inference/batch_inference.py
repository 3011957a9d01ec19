"""Runs a model over the rows of a file or a task, and resumes an unfinished output file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from t5like.console import warn
from t5like.data import LabelForm
from t5like.errors import InvalidSetting, UserError
from t5like.experiments.heads import check_can_score
from t5like.files import storage
from t5like.inference import outputs
from t5like.inference import rows as row_files
from t5like.inference.heads.jobs import WORDS
from t5like.inference.heads.task_rows import labeled_task_rows
from t5like.inference.job_settings import Generate, JobSettings, ReadSettings
from t5like.inference.jobs import Limits
from t5like.inference.model import Model
from t5like.inference.running import run_rows
from t5like.inference.task_caches import task_caches
from t5like.models.heads import WithHead
from t5like.parallel.process_zero import run_on_process_zero

_MAX_PADDING_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
  """Input rows (`input` or `task`), the job to run on them, and the output."""

  job: JobSettings = dataclasses.field(default_factory=Generate)
  input: str | None = None  # a local file; "-": standard input
  format: str | None = None  # "text" or "jsonl"; None: from the file name
  field: str | None = None  # of a JSON line, holds the text
  task: str | None = None
  split: str = "validation"
  examples: int = 0  # maximum per task; 0: all
  modules: Sequence[str] = ()  # register the task
  cache_dir: str | None = None
  max_inputs: int | None = None  # tokens per row
  truncate: bool = False  # cut longer rows instead of rejecting them
  strict: bool = False  # stop at the first rejected row
  output: str | None = None  # None: standard output
  overwrite: bool = False
  batch_size: int = 32

  def __post_init__(self):
    for name, least in (("batch_size", 1), ("examples", 0), ("max_inputs", 1)):
      value = getattr(self, name)
      if value is not None and value < least:
        raise InvalidSetting(f"{name}={value} is invalid", expected=f"at least {least}")

  @property
  def form(self) -> str:
    """The kind of input rows: "task", "text" or "jsonl"."""
    return "task" if self.task else row_files.input_format(self.input, self.format)

  def reading(self, form: str) -> ReadSettings:
    limits = Limits(self.max_inputs, self.truncate, self.field or row_files.TEXT_FIELD)
    return ReadSettings(limits, self.batch_size, self.strict, form)


def answer_rows(model: Model, settings: InferenceSettings) -> int:
  """Answers all rows that are not in the output yet; returns the number of rejected rows.

  Resumes an existing output file if its model and settings are the same; raises UserError otherwise.
  """
  reading = settings.reading(settings.form)
  rows, total = input_rows(model, settings, reading)
  path = storage.as_path(settings.output) if settings.output else None
  if path:
    storage.check_reachable(path, "--output")
  header = _header(model, settings.job, reading.limits) if path else {}

  def lock_output() -> None:
    stack.enter_context(outputs.exclusive_writer(path))
    if not settings.overwrite:
      outputs.check_header(path, header)

  with contextlib.ExitStack() as stack:
    if path:
      run_on_process_zero(lock_output)
    job = settings.job.build(model, reading)
    if path:
      run_on_process_zero(lambda: outputs.start_file(path, header, settings.overwrite))
    if path and path.suffix == ".npy":
      output = outputs.VectorFile(path, job.width)
    else:
      output = outputs.JsonLines(path, reading.limits.field)
    stack.callback(output.close)
    streaming = reading.form != "task" and not row_files.is_regular(settings.input)
    try:
      return run_rows(job, rows, output, settings.batch_size, settings.strict, total, streaming)
    except KeyboardInterrupt:
      if path:
        warn("\nrun the same command again to resume")
      raise


def vocabulary_warnings(model: Model) -> list[str]:
  """Returns warnings about a vocabulary that does not seem to be the model's own.

  Embeddings are padded by a few rows, not by thousands. A Hugging Face configuration also lists its EOS ids.
  """
  rows, ids, name = model.config.vocab_size, model.vocabulary.vocab_size, model.vocabulary_name
  warnings = []
  if rows - ids > _MAX_PADDING_ROWS:
    warnings.append(f"possibly the wrong vocabulary: {name} has {ids:,} ids, the model {rows:,} (set --vocabulary)")
  ends, end = model.source.configured_eos_ids(), model.vocabulary.eos_id
  if ends and end not in ends:
    configured = ", ".join(map(str, sorted(ends)))
    warnings.append(f"{name} ends outputs at id {end}, but the model's configuration has {configured}")
  return warnings


def input_rows(model: Model, settings: InferenceSettings, reading: ReadSettings) -> tuple[row_files.Rows, int | None]:
  """Returns the rows and their number (None: unknown)."""
  if reading.form != "task":
    if settings.field and reading.form == "text":
      raise UserError(f"--field={settings.field}: lines of text have no fields", try_="--format=jsonl")
    total = row_files.count_lines(settings.input)
    if total == 0:
      raise UserError(f"{settings.input} is empty")
    words = WORDS if isinstance(model.module, WithHead) and model.module.head.form == "tagging" else ()
    return row_files.read_rows(settings.input, reading.form, reading.limits.field, words), total
  with _redirect_stdout_to_stderr():
    caches = task_caches(model, settings.cache_dir, settings.modules)
    members = caches.open_or_build(settings.task, settings.split)
  if isinstance(model.module, WithHead):
    for member in members:
      check_can_score(model.module.head, LabelForm.of(member.cache), member.task)
    return labeled_task_rows(members, model.module.head.form, settings.examples), None
  row_files.check_task(members, model.kind)
  total = sum(min(settings.examples or m.cache.examples, m.cache.examples) for m in members)
  return row_files.task_rows(members, model.vocabulary, settings.examples), total


@contextlib.contextmanager
def _redirect_stdout_to_stderr() -> Iterator[None]:
  """Redirects stdout to stderr, for subprocesses too: stdout carries only answers."""
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
  """Returns everything that must match for an output file to be resumed."""
  what = {"embed": None, "candidates_field": None, **dataclasses.asdict(limits), **job.identity(model)}
  weights = model.identity() | {"average": model.average, "dtype": model.config.compute_dtype}
  return {"model": weights, "settings": what}
