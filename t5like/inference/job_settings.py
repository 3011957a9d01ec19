"""The jobs of `t5like infer` as data: what each needs, how it is built, and what identifies its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from t5like.console import warn
from t5like.decoding import DecodeSettings
from t5like.decoding.options import decode_settings
from t5like.errors import UserError
from t5like.inference.encoder_jobs import Embedding, FillMask, Neighbors
from t5like.inference.jobs import Generation, Job, Limits, Ranking
from t5like.inference.model import Model
from t5like.inference.outputs import digest
from t5like.inference.rows import Refused, Row, count_lines, input_format, read_rows, windows
from t5like.inference.running import WINDOW, Progress, answer_window


@dataclasses.dataclass(frozen=True)
class Reading:
  """How rows are read, whatever is done with them."""

  limits: Limits = Limits()
  batch_size: int = 32
  strict: bool = False
  form: str = "text"  # or "jsonl", "task"


class JobSettings(Protocol):
  """A job before a model is loaded."""

  def build(self, model: Model, reading: Reading) -> Job: ...

  def identity(self, model: Model) -> dict[str, Any]:
    """What must be the same when an output file is continued."""


@dataclasses.dataclass(frozen=True)
class Generate:
  """Text for each row; `decoding`: fields of DecodeSettings, and texts under `stop`."""

  decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def settings(self, model: Model) -> tuple[DecodeSettings, tuple[str, ...]]:
    return decode_settings(self.decoding, model.vocabulary, model.positions)

  def build(self, model: Model, reading: Reading) -> Generation:
    return Generation(model, *self.settings(model), reading.limits)

  def identity(self, model: Model) -> dict[str, Any]:
    settings, stops = self.settings(model)
    return {"job": "generate", **dataclasses.asdict(settings), "stop": list(stops)}


@dataclasses.dataclass(frozen=True)
class Score:
  """The log-likelihood of each row's target, or of each line where rows are lines of text."""

  target_field: str = "targets"

  def build(self, model: Model, reading: Reading) -> Ranking:
    whole = reading.form == "text"
    if whole and not model.is_decoder:
      fields = f"{reading.limits.field!r} and {self.target_field!r}"
      raise UserError("--score needs a target for each row", expected=f"JSON lines with {fields}, or a task")
    target_field = None if whole else self.target_field
    return Ranking(model, reading.limits, reading.batch_size, target_field, whole=whole)

  def identity(self, model: Model) -> dict[str, Any]:
    return {"job": "score", "target_field": self.target_field}


@dataclasses.dataclass(frozen=True)
class Rank:
  """Candidate answers in the order of their log-likelihood: the lines of a file, or the list in a field of each row."""

  file: str | None = None
  field: str | None = None
  per_token: bool = False

  def build(self, model: Model, reading: Reading) -> Ranking:
    given = _candidates(self.file) if self.file else ()
    return Ranking(
      model,
      reading.limits,
      reading.batch_size,
      candidates=given,
      candidates_field=self.field,
      per_token=self.per_token,
    )

  def identity(self, model: Model) -> dict[str, Any]:
    name = {"job": "candidates", "candidates": _content(self.file)} if self.file else {"job": "candidates_field"}
    return {**name, "candidates_field": self.field, "per_token": self.per_token}


@dataclasses.dataclass(frozen=True)
class Fill:
  """The likeliest tokens under each mask."""

  top: int = 5

  def build(self, model: Model, reading: Reading) -> FillMask:
    return FillMask(model, reading.limits, self.top)

  def identity(self, model: Model) -> dict[str, Any]:
    return {"job": "fill_mask", "top": self.top}


@dataclasses.dataclass(frozen=True)
class Embed:
  """A vector for each row."""

  pooling: str = "mean"

  def build(self, model: Model, reading: Reading) -> Embedding:
    return Embedding(model, reading.limits, self.pooling)

  def identity(self, model: Model) -> dict[str, Any]:
    return {"job": "embed", "embed": self.pooling}


@dataclasses.dataclass(frozen=True)
class Nearest:
  """The nearest lines of a file, by the cosine of embeddings."""

  DEFAULT_POOLING: ClassVar[str] = "mean"

  file: str
  pooling: str | None = None
  top: int = 5

  def build(self, model: Model, reading: Reading) -> Neighbors:
    """Embeds the sentences to look among, first."""
    embedding = Embedding(model, reading.limits, self.pooling or self.DEFAULT_POOLING)
    return Neighbors(embedding, *_embedded(self.file, embedding, reading), self.top)

  def identity(self, model: Model) -> dict[str, Any]:
    return {"job": "neighbors", "neighbors": _content(self.file), "embed": self.pooling, "top": self.top}


def _content(path: str) -> str:
  return f"{digest(Path(path).read_text(encoding='utf-8', errors='surrogateescape')):016x}"


def _candidates(path: str) -> list[str]:
  """The candidates of a file; each must be one."""
  rows = list(read_rows(path, "text", ""))
  for row in rows:
    if isinstance(row, Refused) or not row.text.strip():
      raise UserError(f"{path}: {row.place}: " + (row.why if isinstance(row, Refused) else "it is empty"))
  if not rows:
    raise UserError(f"{path} is empty: there are no candidates")
  return [row.text for row in rows]


def _embedded(path: str, embedding: Embedding, reading: Reading) -> tuple[Sequence[Row], np.ndarray]:
  """The sentences of a file, and their vectors."""
  warn(f"embedding {path}")
  progress = Progress(count_lines(path), 0, embedding.counts)
  kept, vectors = [], []
  sentences = read_rows(path, input_format(path, None), reading.limits.field)
  planner = embedding.planner(reading.batch_size)
  for window in windows(sentences, lambda: WINDOW * reading.batch_size):
    rows, answers, refused = answer_window(embedding, window, planner, progress, reading.strict)
    if refused:
      raise UserError(f"{path}: {refused.place} cannot be embedded", try_="without --strict")
    good = [(row, answer) for row, answer in zip(rows, answers, strict=True) if answer is not None]
    kept += [row for row, _ in good]
    vectors += [np.asarray(answer["embedding"], np.float32) for _, answer in good]
  progress.end()
  if not kept:
    raise UserError(f"{path} has no sentence to look among")
  return kept, np.stack(vectors)
