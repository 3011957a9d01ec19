"""Settings of the jobs of `t5like infer`: each builds its job and identifies its answers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from t5like.console import warn
from t5like.decoding import DecodeSettings
from t5like.decoding.options import decode_settings, with_defaults
from t5like.errors import UserError
from t5like.inference.embeddings.jobs import DEFAULT_POOLING, Embedding, Neighbors, own_head
from t5like.inference.embeddings.sentences import Sentences, SpooledSentences, VectorsOnly
from t5like.inference.encoder_jobs import FillMask
from t5like.inference.heads.jobs import Labeling
from t5like.inference.inside.words import WORD_FIELD, WordNeighbors, Words, WordVectors
from t5like.inference.jobs import Answer, Generation, Job, Limits, Ranking
from t5like.inference.model import Model
from t5like.inference.rows import RejectedRow, Row, count_lines, input_format, read_rows, windows
from t5like.inference.running import WINDOW, Progress, answer_window


@dataclasses.dataclass(frozen=True)
class ReadSettings:
  """Settings for reading rows, shared by all jobs."""

  limits: Limits = Limits()
  batch_size: int = 32
  strict: bool = False
  form: str = "text"  # or "jsonl", "task"


class JobSettings(Protocol):
  """The settings of a job, before a model is loaded."""

  def build(self, model: Model, reading: ReadSettings) -> Job: ...

  def identity(self, model: Model) -> dict[str, Any]:
    """Returns everything that must match for an output file to be resumed."""


@dataclasses.dataclass(frozen=True)
class Generate:
  """Generates text for each row; `decoding`: fields of DecodeSettings, and stop texts under `stop`.

  Others are the model's own: see Model.decoding.
  """

  decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def settings(self, model: Model) -> tuple[DecodeSettings, tuple[str, ...]]:
    return decode_settings(with_defaults(self.decoding, model.decoding), model.vocabulary, model.positions)

  def build(self, model: Model, reading: ReadSettings) -> Generation:
    return Generation(model, *self.settings(model), reading.limits)

  def identity(self, model: Model) -> dict[str, Any]:
    settings, stops = self.settings(model)
    # Earlier outputs do not record these; they, too, ended at the model's own ends.
    own_ends = () if "more_ends" in self.decoding else settings.more_ends
    later = {"no_repeat_ngram": 0, "forbidden": (), "forced_first": None, "forced_end": False, "more_ends": own_ends}
    fields = {name: value for name, value in dataclasses.asdict(settings).items() if (name, value) not in later.items()}
    languages = {"languages": list(model.given_languages)} if model.given_languages else {}
    return {"job": "generate", **fields, **languages, "stop": list(stops)}


@dataclasses.dataclass(frozen=True)
class Score:
  """Computes the log-likelihood of each row's target; of the row itself for lines of text."""

  target_field: str = "targets"

  def build(self, model: Model, reading: ReadSettings) -> Ranking:
    score_inputs = reading.form == "text"
    if score_inputs and not model.is_decoder:
      fields = f"{reading.limits.field!r} and {self.target_field!r}"
      raise UserError("--score needs a target for each row", expected=f"JSON lines with {fields}, or a task")
    target_field = None if score_inputs else self.target_field
    return Ranking(model, reading.limits, reading.batch_size, target_field, score_inputs=score_inputs)

  def identity(self, model: Model) -> dict[str, Any]:
    return {"job": "score", "target_field": self.target_field}


@dataclasses.dataclass(frozen=True)
class Rank:
  """Ranks candidate answers by log-likelihood: the lines of a file, or the list in a field of each row."""

  file: str | None = None
  field: str | None = None
  per_token: bool = False

  def build(self, model: Model, reading: ReadSettings) -> Ranking:
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
    name = {"job": "candidates", "candidates": _content_digest(self.file)} if self.file else {"job": "candidates_field"}
    return {**name, "candidates_field": self.field, "per_token": self.per_token}


@dataclasses.dataclass(frozen=True)
class Fill:
  """Predicts the most likely tokens for each mask."""

  top: int = 5

  def build(self, model: Model, reading: ReadSettings) -> FillMask:
    return FillMask(model, reading.limits, self.top)

  def identity(self, model: Model) -> dict[str, Any]:
    return {"job": "fill_mask", "top": self.top}


@dataclasses.dataclass(frozen=True)
class Labels:
  """Predicts the label of each row with the model's head."""

  no_answer_threshold: float | None = None  # see Labeling

  def build(self, model: Model, reading: ReadSettings) -> Labeling:
    return Labeling(model, reading.limits, self.no_answer_threshold)

  def identity(self, model: Model) -> dict[str, Any]:
    threshold = model.no_answer_threshold if self.no_answer_threshold is None else self.no_answer_threshold
    return {"job": "labels"} | ({} if threshold is None else {"no_answer_threshold": threshold})


@dataclasses.dataclass(frozen=True)
class Embed:
  """Computes an embedding for each row."""

  pooling: str | None = None  # None: the model's own, else mean

  def build(self, model: Model, reading: ReadSettings) -> Embedding:
    return Embedding(model, reading.limits, self.pooling)

  def identity(self, model: Model) -> dict[str, Any]:
    return {"job": "embed", "embed": _pooling(model, self.pooling)}


@dataclasses.dataclass(frozen=True)
class Nearest:
  """Finds the nearest lines of a file, or the nearest vectors of a .npy file, by cosine similarity of embeddings."""

  file: str
  pooling: str | None = None
  top: int = 5

  def build(self, model: Model, reading: ReadSettings) -> Neighbors:
    """Embeds the sentences of the file, then returns the job."""
    embedding = Embedding(model, reading.limits, self.pooling)
    is_vectors = self.file.endswith(".npy")
    return Neighbors(
      embedding, VectorsOnly(self.file) if is_vectors else _embed_file(self.file, embedding, reading), self.top
    )  # fmt: skip

  def identity(self, model: Model) -> dict[str, Any]:
    return {"job": "neighbors", "neighbors": _content_digest(self.file), "embed": self.pooling, "top": self.top}


@dataclasses.dataclass(frozen=True)
class NearestWords:
  """Finds the words of a file's texts that are nearest to a word of each row, in their contexts."""

  file: str
  word: str = ""  # "": the one in a field of each row
  layer: int = -1
  top: int = 5

  def build(self, model: Model, reading: ReadSettings) -> WordNeighbors:
    """Reads the words of the file, then returns the job."""
    if not self.word and reading.form != "jsonl":
      raise UserError("--word has no value", expected=f"--word=WORD, or JSON lines with a field {WORD_FIELD!r}")
    if self.file.endswith(".npy"):
      raise UserError(f"{self.file} has vectors of texts, not words", option="--neighbors", expected="a file of texts")
    words, vectors = Words(), WordVectors(model, reading.limits, self.layer)
    for row, answer in _answers_of_file(self.file, vectors, reading):
      words.add(row, answer)
    if not len(words):
      raise UserError(f"no words in {self.file}")
    return WordNeighbors(WordVectors(model, reading.limits, self.layer, self.word), words, self.top)

  def identity(self, model: Model) -> dict[str, Any]:
    return {"job": "words", "neighbors": _content_digest(self.file)} | {
      name: getattr(self, name) for name in ("word", "layer", "top")
    }


def _pooling(model: Model, given: str | None) -> str:
  return given or ("own" if own_head(model) else DEFAULT_POOLING)


def _content_digest(path: str) -> str:
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _candidates(path: str) -> list[str]:
  """Reads candidates, one per line; raises UserError at an invalid or empty line."""
  rows = list(read_rows(path, "text", ""))
  for row in rows:
    if isinstance(row, RejectedRow) or not row.text.strip():
      raise UserError(f"{path}: {row.location}: " + (row.why if isinstance(row, RejectedRow) else "empty line"))
  if not rows:
    raise UserError(f"{path} is empty: expected one candidate per line")
  return [row.text for row in rows]


def _embed_file(path: str, embedding: Embedding, reading: ReadSettings) -> Sentences:
  """Returns the sentences of a file with their embeddings."""
  kept = SpooledSentences(embedding.width)
  for row, answer in _answers_of_file(path, embedding, reading):
    kept.add([row], [answer["embedding"]])
  if not len(kept):
    raise UserError(f"no sentences in {path}")
  return kept.finish()


def _answers_of_file(path: str, job: Job, reading: ReadSettings) -> Iterator[tuple[Row, Answer]]:
  """Yields the rows of a file that can be answered, with their answers."""
  warn(f"embedding {path}")
  progress = Progress(count_lines(path), 0, job.unit)
  sentences = read_rows(path, input_format(path, None), reading.limits.field)
  planner = job.planner(reading.batch_size)
  for window in windows(sentences, lambda: WINDOW * reading.batch_size):
    rows, answers, rejected = answer_window(job, window, planner, progress, reading.strict)
    if rejected:
      raise UserError(f"{path}: {rejected.location} cannot be embedded", try_="without --strict")
    yield from ((row, answer) for row, answer in zip(rows, answers, strict=True) if answer is not None)
  progress.end()
