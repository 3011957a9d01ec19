"""Inference jobs over rows of text: generate, score and rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from t5like.decoding import Decoded, DecodeSettings
from t5like.errors import InvalidSetting, UserError
from t5like.inference.batching import BatchPlanner, BatchShape
from t5like.inference.generation import Generator
from t5like.inference.ranking import CandidateScorer, Likelihood
from t5like.inference.rows import TEXT_FIELD, RejectedRow, Row, reject
from t5like.vocabularies import SpelledWords

if TYPE_CHECKING:  # a circular import: Model runs these jobs
  from t5like.inference.model import Model

Answer = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Prepared:
  """A tokenized row."""

  row: Row
  tokens: list[int]  # the model's input
  start: int = 0  # the token before them, for scoring with a decoder
  candidates: Sequence[list[int]] = ()
  texts: Sequence[str] = ()  # of the candidates

  @property
  def length(self) -> int:
    return len(self.tokens) + max(map(len, self.candidates), default=0)


class Job(Protocol):
  """A function of rows, applied in batches."""

  unit: str  # what the reported speed counts
  limits: Limits

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]: ...

  def planner(self, batch_size: int) -> BatchPlanner:
    """Returns the planner of this job's batches."""

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    """Returns (answer, tokens used) for each row; pads to `shape`, or to the smallest one that fits."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """The maximum length of a text, and the treatment of longer ones."""

  inputs: int | None = None  # tokens, special tokens included; None: the model's positions
  truncate: bool = False  # keep the end of a text for a decoder, the beginning for an encoder
  field: str = TEXT_FIELD

  def tokenize(self, model: Model, rows: Sequence[Row], reserved: int = 0) -> list[tuple[Row, list[int]] | RejectedRow]:
    """Tokenizes texts and adds special tokens; reserves `reserved` positions for the output."""
    form, positions = model.prompt_form, model.positions
    most = _smallest(self.inputs, None if positions is None else positions - reserved)
    around = len(form.tokens([0])) - 1
    texts = iter(model.vocabulary.encode_batch([row.text for row in rows if row.tokens is None]))
    read: list[tuple[Row, list[int]] | RejectedRow] = []
    for row in rows:
      text = next(texts) if row.tokens is None else row.tokens
      if not isinstance(model.vocabulary, SpelledWords) and max(text, default=0) >= model.config.vocab_size:
        piece = model.vocabulary.piece(max(text))
        read.append(reject(row, f"the model's embedding has no row for {piece!r}", self.field))
        continue
      if most is not None and len(text) + around > most:
        if not self.truncate or most < around:
          why = _too_long(len(text) + around, most, positions, reserved)
          read.append(reject(row, why, self.field, remedy="--truncate cuts it"))
          continue
        kept = most - around
        text = text[len(text) - kept :] if model.is_decoder else text[:kept]
      read.append((row, form.tokens(text)))
    return read


def _smallest(*counts: int | None) -> int | None:
  return min((count for count in counts if count is not None), default=None)


def _too_long(length: int, most: int, positions: int | None, reserved: int) -> str:
  if positions is None or most < positions - reserved:
    limit = f"--max_inputs={most}"
  else:
    limit = f"the model has {positions:,} positions" + (f", {reserved:,} reserved for the output" if reserved else "")
  return f"too long: {length:,} tokens ({limit})"


def check_answers(model: Model) -> None:
  """Raises UserError for a model that was trained to answer in another vocabulary than its own."""
  if tasks := model.source.own_targets:
    raise UserError(
      f"the targets of task {tasks[0]!r}, on which this model was trained, have their own vocabulary, not the model's",
      try_=f"t5like eval --task={tasks[0]}, which writes its answers to predictions/",
    )


class Generation:
  """Generates a continuation of each row, or an answer to it."""

  unit = "tokens generated"

  def __init__(self, model: Model, settings: DecodeSettings, stops: Sequence[str], limits: Limits):
    if model.module.batch_layout == "encoder":
      raise UserError(
        f"{model.kind} is an encoder and cannot generate text",
        try_="--fill_mask, or --embed (in Python: fill_mask, embed)",
      )
    check_answers(model)
    self._model, self.limits = model, limits
    self._generator = model.runner(Generator, model.vocabulary.eos_id, 0, model.special.start)
    self.set_decoding(settings, stops)

  def set_decoding(self, settings: DecodeSettings, stops: Sequence[str]) -> None:
    positions = self._model.positions
    if positions is not None and settings.max_length > positions:
      raise InvalidSetting(
        f"max_length={settings.max_length} exceeds the model's {positions} positions",
        expected=f"for example {max(positions // 2, 1)}: the prompt needs positions too",
      )
    self.settings, self._stops = settings, stops
    self._reserved = settings.max_length - 1 if self._model.is_decoder else 0

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    read = self.limits.tokenize(self._model, rows, self._reserved)
    return [r if isinstance(r, RejectedRow) else Prepared(*r) for r in read]

  def planner(self, batch_size: int) -> BatchPlanner:
    return self._generator.planner(batch_size, self.settings.max_length)

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    decoded = self._decode(batch, shape)
    answers = []
    for i, prepared in enumerate(batch):
      outputs = []
      for n, length in enumerate(decoded.lengths[i]):
        text, stopped = self._text(prepared, decoded.tokens[i, n, :length])
        output = {
          "text": text,
          "score": float(decoded.scores[i, n]),
          "tokens": int(length),
          "finished": stopped or int(length) < self.settings.max_length,
        }
        if self.settings.method == "beam":
          output["ranking"] = float(decoded.ranking[i, n])
        outputs.append(output)
      answers.append(({"outputs": outputs}, int(decoded.lengths[i].sum())))
    return answers

  def _decode(self, batch: Sequence[Prepared], shape: BatchShape | None) -> Decoded:
    row_ids = np.array([p.row.number for p in batch], np.int32)
    return self._generator.texts(self._model.params, [p.tokens for p in batch], self.settings, shape, row_ids)

  def _text(self, prepared: Prepared, output: np.ndarray) -> tuple[str, bool]:
    """Returns the output up to the first stop text, and whether there was one."""
    decode = self._model.vocabulary.decode
    text = decode(output.tolist())
    form = self._model.prompt_form
    if self._model.is_decoder and form.end is None:
      # Some vocabularies drop the leading space of an output: it is decoded after its prompt.
      prompt = list(prepared.tokens if form.start is None else prepared.tokens[1:])
      if (end := self._model.vocabulary.eos_id) in prompt:  # after the last turn of a chat, as decoding stops at an end
        prompt = prompt[len(prompt) - prompt[::-1].index(end) :]
      prefix, full = decode(prompt), decode([*prompt, *output.tolist()])
      text = full[len(prefix) :] if prefix and full.startswith(prefix) else text
    ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
    return (text[: min(ends)] if ends else text), bool(ends)


class Ranking:
  """Computes the log-likelihood of one target per row, or ranks candidates by it."""

  unit = "tokens read"

  def __init__(
    self,
    model: Model,
    limits: Limits,
    batch_size: int,
    target_field: str | None = None,
    candidates: Sequence[str] = (),
    candidates_field: str | None = None,
    per_token: bool = False,
    score_inputs: bool = False,
  ):
    """`score_inputs`: score the rows themselves, after an empty prompt."""
    if model.module.batch_layout == "encoder":
      raise UserError(f"{model.kind} is an encoder and cannot compute the likelihood of a text")
    check_answers(model)
    self._model, self.limits = model, limits
    self._target_field, self._given, self._field = target_field, list(candidates), candidates_field
    self._per_token, self._score_inputs = per_token, score_inputs
    self._is_decoder = model.is_decoder
    self._scorer = model.runner(CandidateScorer, 0, batch_size)

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    prompts = [dataclasses.replace(row, text="") for row in rows] if self._score_inputs else rows
    read = self.limits.tokenize(self._model, prompts)
    return [
      r if isinstance(r, RejectedRow) else self._with_candidates(row, r[1]) for row, r in zip(rows, read, strict=True)
    ]

  def _with_candidates(self, row: Row, tokens: list[int]) -> Prepared | RejectedRow:
    texts = self._texts(row)
    if isinstance(texts, str):
      return reject(row, texts, self.limits.field)
    form, vocabulary = self._model.prompt_form, self._model.vocabulary
    end = [] if form.end is None and self._is_decoder else [vocabulary.eos_id]
    known = [row.targets] if self._target_field and row.targets is not None else vocabulary.encode_batch(texts)
    candidates = [[*self._model.special.before_targets, *ids, *end] for ids in known]
    if not all(candidates):
      return reject(row, "empty answer", self.limits.field)
    longest, positions = max(map(len, candidates)), self._model.positions
    start, inputs = (tokens[0], tokens[1:]) if self._is_decoder else (self._model.special.start, tokens)
    needed = longest + (len(inputs) if self._is_decoder else 0)
    if positions is not None and needed > positions:
      if not self.limits.truncate or longest >= positions or not self._is_decoder:
        why = f"too long: {needed:,} tokens with its answer (the model has {positions:,} positions)"
        return reject(row, why, self.limits.field)
      cut = needed - positions
      start, inputs = (tokens[cut] if form.start is None else start), inputs[cut:]
    return Prepared(row, inputs, start, candidates, texts)

  def _texts(self, row: Row) -> list[str] | str:
    """Returns the candidates of a row, or the reason why there are none."""
    if self._given or self._score_inputs:
      return self._given or [row.text]
    name = self._target_field or self._field
    found = row.fields.get(name)
    if self._target_field:
      return [found] if isinstance(found, str) else f"no text to score in field {name!r}"
    if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
      return f"no list of texts to rank in field {name!r}"
    return found

  def planner(self, batch_size: int) -> BatchPlanner:
    return BatchPlanner(batch_size)

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    """Ignores `shape`: the scorer batches (row, candidate) pairs."""
    inputs, candidates, starts = zip(*((p.tokens, p.candidates, p.start) for p in batch), strict=True)
    scores = self._scorer(self._model.params, inputs, candidates, starts)
    tokens = [len(p.tokens) * len(p.candidates) + sum(map(len, p.candidates)) for p in batch]
    make = self._score if self._target_field or self._score_inputs else self._rank
    return [(make(p.texts, own), count) for p, own, count in zip(batch, scores, tokens, strict=True)]

  def _score(self, texts: Sequence[str], scores: Sequence[Likelihood]) -> Answer:
    return _likelihood(scores[0])

  def _rank(self, texts: Sequence[str], scores: Sequence[Likelihood]) -> Answer:
    """Sorts by likelihood, highest first; ties keep their order."""
    entries = [{"text": text, **_likelihood(score)} for text, score in zip(texts, scores, strict=True)]
    entries.sort(key=lambda entry: -entry["per_token" if self._per_token else "score"])
    return {"choice": entries[0]["text"], "ranking": entries}


def _likelihood(score: Likelihood) -> Answer:
  return {"score": score.log_likelihood, "tokens": score.tokens, "per_token": score.per_token}
