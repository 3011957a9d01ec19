"""Jobs over rows of text: generate from each, or score and rank given answers."""

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
from t5like.inference.rows import TEXT_FIELD, Refused, Row, refuse

if TYPE_CHECKING:  # a model's methods run these jobs
  from t5like.inference.model import Model

Answer = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Prepared:
  """A row that the model can take."""

  row: Row
  tokens: list[int]  # what the model reads
  start: int = 0  # what a decoder reads before them, where that is asked for
  candidates: Sequence[list[int]] = ()
  texts: Sequence[str] = ()  # of the candidates

  @property
  def length(self) -> int:
    return len(self.tokens) + max(map(len, self.candidates), default=0)


class Job(Protocol):
  """What is done with each row."""

  counts: str  # the kind of tokens that the speed counts
  limits: Limits

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | Refused]: ...

  def planner(self, batch_size: int) -> BatchPlanner:
    """Plans the batches of rows."""

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    """An answer for each row, and how many tokens it took; padded to `shape`, or to the smallest that holds them."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """How long a text may be, and what happens to longer ones."""

  inputs: int | None = None  # tokens, marks around the text among them; None: as many as the model has positions
  truncate: bool = False  # cut them: the end of what a decoder reads, the beginning of what an encoder does
  field: str = TEXT_FIELD

  def read(self, model: Model, rows: Sequence[Row], room: int = 0) -> list[tuple[Row, list[int]] | Refused]:
    """The texts in tokens, with marks around them; `room` positions are kept free for what follows."""
    form, positions = model.prompt_form, model.positions
    most = _least(self.inputs, None if positions is None else positions - room)
    around = len(form.tokens([0])) - 1
    texts = iter(model.vocabulary.encode_batch([row.text for row in rows if row.tokens is None]))
    read: list[tuple[Row, list[int]] | Refused] = []
    for row in rows:
      text = next(texts) if row.tokens is None else row.tokens
      if most is not None and len(text) + around > most:
        if not self.truncate or most < around:
          why = _too_long(len(text) + around, most, positions, room)
          read.append(refuse(row, why, self.field, remedy="--truncate cuts them"))
          continue
        kept = most - around
        text = text[len(text) - kept :] if model.is_decoder else text[:kept]
      read.append((row, form.tokens(text)))
    return read


def _least(*counts: int | None) -> int | None:
  return min((count for count in counts if count is not None), default=None)


def _too_long(length: int, most: int, positions: int | None, room: int) -> str:
  if positions is None or most < positions - room:
    limit = f"--max_inputs={most}"
  else:
    limit = f"the model has {positions:,} positions" + (f", {room:,} of them for the output" if room else "")
  return f"{length:,} tokens are too many: {limit}"


class Generation:
  """Writes on from each row, or answers it."""

  counts = "tokens written"

  def __init__(self, model: Model, settings: DecodeSettings, stops: Sequence[str], limits: Limits):
    if model.module.batch_layout == "encoder":
      raise UserError(f"{model.kind} is an encoder: it writes no text", try_="fill_mask, or embed")
    self._model, self.limits = model, limits
    self._generator = model.runner(Generator, model.vocabulary.eos_id)
    self.change(settings, stops)

  def change(self, settings: DecodeSettings, stops: Sequence[str]) -> None:
    positions = self._model.positions
    if positions is not None and settings.max_length > positions:
      raise InvalidSetting(
        f"max_length={settings.max_length} is more than the model's {positions} positions",
        expected=f"less, such as {max(positions // 2, 1)}: a prompt needs positions, too",
      )
    self.settings, self._stops = settings, stops
    self._room = settings.max_length - 1 if self._model.is_decoder else 0

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | Refused]:
    read = self.limits.read(self._model, rows, self._room)
    return [r if isinstance(r, Refused) else Prepared(*r) for r in read]

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
    """The output, up to the first stop text; and whether there was one."""
    decode = self._model.vocabulary.decode
    text = decode(output.tolist())
    form = self._model.prompt_form
    if self._model.is_decoder and form.end is None:
      # A space at the beginning is part of how an output goes on from its prompt; some vocabularies drop it.
      prompt = prepared.tokens if form.start is None else prepared.tokens[1:]
      before, whole = decode(prompt), decode([*prompt, *output.tolist()])
      text = whole[len(before) :] if before and whole.startswith(before) else text
    ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
    return (text[: min(ends)] if ends else text), bool(ends)


class Ranking:
  """The log-likelihood of given answers: of one target a row, or of candidates that are then put in order."""

  counts = "tokens read"

  def __init__(
    self,
    model: Model,
    limits: Limits,
    batch_size: int,
    target_field: str | None = None,
    candidates: Sequence[str] = (),
    candidates_field: str | None = None,
    per_token: bool = False,
    whole: bool = False,
  ):
    """`whole`: a row is itself the answer, to nothing."""
    if model.module.batch_layout == "encoder":
      raise UserError(f"{model.kind} is an encoder: it cannot say how likely a text is")
    self._model, self.limits = model, limits
    self._target_field, self._given, self._field = target_field, list(candidates), candidates_field
    self._per_token, self._whole = per_token, whole
    self._is_decoder = model.is_decoder
    self._scorer = model.runner(CandidateScorer, 0, batch_size)

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | Refused]:
    asked = [dataclasses.replace(row, text="") for row in rows] if self._whole else rows
    read = self.limits.read(self._model, asked)
    return [
      r if isinstance(r, Refused) else self._with_candidates(row, r[1]) for row, r in zip(rows, read, strict=True)
    ]

  def _with_candidates(self, row: Row, tokens: list[int]) -> Prepared | Refused:
    texts = self._texts(row)
    if isinstance(texts, str):
      return refuse(row, texts, self.limits.field)
    form, vocabulary = self._model.prompt_form, self._model.vocabulary
    end = [] if form.end is None and self._is_decoder else [vocabulary.eos_id]
    known = [row.targets] if self._target_field and row.targets is not None else vocabulary.encode_batch(texts)
    candidates = [[*ids, *end] for ids in known]
    if not all(candidates):
      return refuse(row, "an answer without tokens", self.limits.field)
    longest, positions = max(map(len, candidates)), self._model.positions
    start, inputs = (tokens[0], tokens[1:]) if self._is_decoder else (0, tokens)
    needed = longest + (len(inputs) if self._is_decoder else 0)
    if positions is not None and needed > positions:
      if not self.limits.truncate or longest >= positions or not self._is_decoder:
        why = f"{needed:,} tokens with its answer are too many: the model has {positions:,} positions"
        return refuse(row, why, self.limits.field)
      cut = needed - positions
      start, inputs = (tokens[cut] if form.start is None else start), inputs[cut:]
    return Prepared(row, inputs, start, candidates, texts)

  def _texts(self, row: Row) -> list[str] | str:
    """The candidates of a row, or what is wrong with them."""
    if self._given or self._whole:
      return self._given or [row.text]
    name = self._target_field or self._field
    found = row.fields.get(name)
    if self._target_field:
      return [found] if isinstance(found, str) else f"no text in the field {name!r}, whose likelihood is asked for"
    if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
      return f"no list of texts in the field {name!r}, to be ranked"
    return found

  def planner(self, batch_size: int) -> BatchPlanner:
    return BatchPlanner(batch_size)

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    """The scorer deals candidates out to batches itself: `shape` says nothing of them."""
    inputs, candidates, starts = zip(*((p.tokens, p.candidates, p.start) for p in batch), strict=True)
    scores = self._scorer(self._model.params, inputs, candidates, starts)
    tokens = [len(p.tokens) * len(p.candidates) + sum(map(len, p.candidates)) for p in batch]
    make = self._score if self._target_field or self._whole else self._rank
    return [(make(p.texts, own), count) for p, own, count in zip(batch, scores, tokens, strict=True)]

  def _score(self, texts: Sequence[str], scores: Sequence[Likelihood]) -> Answer:
    return _likelihood(scores[0])

  def _rank(self, texts: Sequence[str], scores: Sequence[Likelihood]) -> Answer:
    """The likeliest first; of equal ones the first given."""
    entries = [{"text": text, **_likelihood(score)} for text, score in zip(texts, scores, strict=True)]
    entries.sort(key=lambda entry: -entry["per_token" if self._per_token else "score"])
    return {"choice": entries[0]["text"], "ranking": entries}


def _likelihood(score: Likelihood) -> Answer:
  return {"score": score.log_likelihood, "tokens": score.tokens, "per_token": score.per_token}
