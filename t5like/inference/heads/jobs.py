"""The inference job of a model with a head: labels, values, choices, tags or answers, with probabilities.

Fields of a row besides its text: `second` (or `text_pair`), the second text of a pair; `words` (or `tokens`), a list
instead of a text to tag; `passage` (or `context`), in which the text, a question, is answered; `choices`, the candidate
answers.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t5like.data.labeled_rows import encoder_rows
from t5like.errors import UserError
from t5like.inference.batching import BatchShape
from t5like.inference.encodings import OnePassJob
from t5like.inference.heads.outputs import HeadRunner, sigmoid, softmax
from t5like.inference.jobs import Answer, Limits, Prepared
from t5like.inference.rows import RejectedRow, Row, reject, words_of
from t5like.models.heads import WithHead
from t5like.objectives import Ragged
from t5like.objectives.segments import PairForm, join_words
from t5like.objectives.spans import LENGTH, Windows, make_windows, squad_answers

if TYPE_CHECKING:  # a circular import: Model runs these jobs
  from t5like.inference.model import Model

# The latter names are those of rows for training, or of SQuAD.
_PASSAGES, _SECONDS, WORDS = ("passage", "context"), ("second", "text_pair"), ("words", "tokens")


@dataclasses.dataclass(frozen=True)
class PreparedRows(Prepared):
  """The rows of the model for one input: one, or one per choice; windows for a question."""

  rows: Sequence[tuple[np.ndarray, np.ndarray]] = ()  # tokens and token types, each [length]
  words: Sequence[str] = ()
  word_numbers: np.ndarray | None = None
  windows: Windows | None = None
  passage: str = ""

  @property
  def length(self) -> int:
    return max((len(tokens) for tokens, _ in self.rows), default=1)


class Labeling(OnePassJob):
  """Predicts the label of each row with the model's head.

  no_answer_threshold  a question has no answer if the first token beats the best span by more (SQuAD 2.0);
                       None: as tuned in training, inf: every question has an answer
  label_threshold      a row has the labels with at least this probability (MultiLabelHead)
  """

  def __init__(
    self, model: Model, limits: Limits, no_answer_threshold: float | None = None, label_threshold: float = 0.5
  ):
    if not isinstance(model.module, WithHead):
      raise UserError(
        f"this {model.kind} has no head for labels",
        try_=f"files of gin/finetune: --gin.HEAD_TASK=my_classification --gin.INIT_FROM={model.folder}",
      )
    self._model, self.limits, self._head = model, limits, model.module.head
    if not isinstance(label_threshold, numbers.Real) or not 0 <= label_threshold <= 1:
      raise UserError(f"threshold={label_threshold!r} is invalid", expected="a probability")
    if no_answer_threshold is not None and self.form != "spans":
      raise UserError(f"a {type(self._head).__name__} has no threshold for questions without an answer")
    self._threshold = model.no_answer_threshold if no_answer_threshold is None else no_answer_threshold
    self._label_threshold = label_threshold
    self._form = PairForm.of(model.special)
    self._runner = model.runner(HeadRunner)

  @property
  def form(self) -> str:
    return self._head.form

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    prepare = {"tagging": self._words, "spans": self._question, "choices": self._choices}.get(self.form, self._texts)
    prepared = []
    for row in rows:
      found = prepare(row)
      if isinstance(found, str):
        found = reject(row, found, self.limits.field, _REMEDY if found.startswith(_TOO_LONG) else "")
      prepared.append(found)
    return prepared

  def answer(self, batch: Sequence[PreparedRows], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    if self.form == "spans":
      return self._answers(batch, shape)
    length = shape.length if shape else max(p.length for p in batch)
    rows = _padded([row for p in batch for row in p.rows], length)
    if self.form == "choices":
      logits = self._in_parts(rows, [len(p.rows) for p in batch], shape)
    else:
      logits = self._runner(self._model.params, encoder_rows(*rows), shape.rows if shape else 0)
    make = _ANSWERS.get(self.form, Labeling._label)
    return [(make(self, p, own), sum(len(t) for t, _ in p.rows)) for p, own in zip(batch, logits, strict=True)]

  def _in_parts(self, rows: Sequence[np.ndarray], counts: Sequence[int], shape: BatchShape | None) -> list[np.ndarray]:
    """Returns the logits of inputs with `counts` rows each (windows or choices), computed in batches of one size.

    rows: tokens, token types and lengths.
    """
    size, features, logits = shape.rows if shape else sum(counts), encoder_rows(*rows), []
    for first in range(0, sum(counts), size):
      part = {name: x[first : first + size] for name, x in features.items()}
      logits.append(self._runner(self._model.params, part, size))
    return np.split(np.concatenate(logits), np.cumsum(counts)[:-1])

  # From rows of text to rows of tokens.

  def _texts(self, row: Row) -> PreparedRows | str:
    name, second = next(((n, row.fields[n]) for n in _SECONDS if row.fields.get(n) is not None), ("", None))
    if second is not None and not isinstance(second, str):
      return f"field {name!r} is not a text"
    joined = self._joined(row.text, second)
    return joined if isinstance(joined, str) else PreparedRows(row, [], rows=[joined])

  def _choices(self, row: Row) -> PreparedRows | str:
    choices = row.fields.get("choices")
    if not isinstance(choices, list) or not all(isinstance(text, str) for text in choices):
      return "no list of texts in field 'choices'"
    if not choices:
      return "no texts in field 'choices'"
    joined = [self._joined(row.text, choice) for choice in choices]
    wrong = next((found for found in joined if isinstance(found, str)), None)
    return wrong or PreparedRows(row, [], rows=joined, words=choices)

  def _words(self, row: Row) -> PreparedRows | str:
    words = words_of(row.fields, WORDS)
    words = row.text.split() if words is None else words
    if not words:
      return "no words to tag"
    pieces = self._model.vocabulary.encode_batch([f" {word}" for word in words])
    tokens = [piece for word in pieces for piece in word]
    length = self._row_length(len(tokens) + self._form.around)
    if isinstance(length, str):
      return length
    sizes = _ragged([len(word) for word in pieces])
    joined = join_words(_ragged(tokens), sizes, _ragged([0] * len(words)), length, self._form)
    types = np.zeros(length, np.int32)
    return PreparedRows(
      row, [], rows=[(joined.tokens[0], types)], words=words, word_numbers=joined.word_numbers[0]
    )  # fmt: skip

  def _question(self, row: Row) -> PreparedRows | str:
    passage = next((row.fields[name] for name in _PASSAGES if isinstance(row.fields.get(name), str)), None)
    if passage is None:
      return "no passage in field 'passage'"
    length = min(filter(None, (self._window_length(), self._model.positions)))
    try:
      windows = make_windows(self._model.vocabulary, row.text, passage, length=length, form=self._form)
    except UserError as error:  # the question is too long
      return error.what
    rows = list(zip(windows.tokens, windows.token_types, strict=True))
    return PreparedRows(row, [], rows=rows, windows=windows, passage=passage)

  def _window_length(self) -> int:
    model = self._model
    own = model.experiment.lengths["inputs"] if model.has_training_config else LENGTH
    return self.limits.inputs or own

  def _joined(self, first: str, second: str | None) -> tuple[np.ndarray, np.ndarray] | str:
    ids = self._model.vocabulary.encode_batch([first] if second is None else [first, second])
    if not any(ids) and not self._form.around:
      ids[0] = [self._model.prompt_form.empty]
    special = self._form.around + (self._form.separators if second is not None else 0)
    length = self._row_length(sum(map(len, ids)) + special)
    if isinstance(length, str):
      return length
    joined = self._form.join(_ragged(ids[0]), None if second is None else _ragged(ids[1]), length)
    return joined.tokens[0], joined.token_types[0]

  def _row_length(self, tokens: int) -> int | str:
    """Returns the length of a row, truncated if allowed, or the reason why it cannot be read."""
    positions = self._model.positions
    most = min((n for n in (self.limits.inputs, positions) if n is not None), default=tokens)
    if tokens <= most or self.limits.truncate:
      return min(tokens, most)
    limit = f"the model has {positions:,} positions" if most == positions else f"--max_inputs={most}"
    return f"{_TOO_LONG}: {tokens:,} tokens ({limit})"

  # From logits to answers.

  def _label(self, prepared: PreparedRows, logits: np.ndarray) -> Answer:
    return _best(self._head.labels, softmax(logits))

  def _labels(self, prepared: PreparedRows, logits: np.ndarray) -> Answer:
    probabilities = dict(zip(self._head.labels, map(float, sigmoid(logits)), strict=True))
    return {
      "labels": [label for label, p in probabilities.items() if p >= self._label_threshold],
      "probabilities": probabilities,
    }

  def _value(self, prepared: PreparedRows, logits: np.ndarray) -> Answer:
    return {"value": float(logits[0])}

  def _choice(self, prepared: PreparedRows, logits: np.ndarray) -> Answer:
    probabilities = softmax(logits[:, 0])  # [choices, 1]
    best = int(np.argmax(probabilities))
    return {
      "label": prepared.words[best], "number": best, "probability": float(probabilities[best]),
      "probabilities": probabilities.tolist(),
    }  # fmt: skip

  def _tags(self, prepared: PreparedRows, logits: np.ndarray) -> Answer:
    """Returns a tag per word; O for words without a piece, and beyond the row's end."""
    tags, probabilities = ["O"] * len(prepared.words), [0.0] * len(prepared.words)
    for place in np.flatnonzero(prepared.word_numbers >= 0):
      found = _best(self._head.labels, softmax(logits[place]))
      number = int(prepared.word_numbers[place])
      tags[number], probabilities[number] = found["label"], found["probability"]
    return {"words": list(prepared.words), "tags": tags, "probabilities": probabilities}

  def _answers(self, batch: Sequence[PreparedRows], shape: BatchShape | None) -> list[tuple[Answer, int]]:
    windows = [p.windows for p in batch]
    rows = [np.concatenate([getattr(w, name) for w in windows]) for name in ("tokens", "token_types", "lengths")]
    logits = self._in_parts(rows, [len(w.tokens) for w in windows], shape)
    return [(self._span(p, own), int(p.windows.lengths.sum())) for p, own in zip(batch, logits, strict=True)]

  def _span(self, prepared: PreparedRows, logits: np.ndarray) -> Answer:
    """Returns the best span of all windows, and its share of all pairs of a first and a last token."""
    windows, passage = prepared.windows, prepared.passage
    count = len(logits)
    found = squad_answers(
      logits[..., 0], logits[..., 1], windows.offsets, windows.best_context, ["?"] * count, [passage] * count,
      unanswerable=self._threshold is not None, threshold=self._threshold or 0.0,
    )["?"]  # fmt: skip
    real = np.arange(logits.shape[1])[None, :, None] < windows.lengths[:, None, None]
    sums = np.sum(np.log(np.sum(np.where(real, np.exp(logits.astype(np.float64)), 0.0), axis=1)), axis=1)  # [windows]
    score = found.score if found.text else found.null_score
    probability = float(np.exp(score - np.logaddexp.reduce(sums))) if np.isfinite(score) else 0.0
    return {
      "answer": found.text, "probability": probability, "score": found.score, "null_score": found.null_score,
    }  # fmt: skip


_TOO_LONG, _REMEDY = "too long", "--truncate cuts it"
# From the logits of a row to an answer, by the form of the head; others predict a class.
_ANSWERS = {
  "tagging": Labeling._tags,
  "choices": Labeling._choice,
  "regression": Labeling._value,
  "multi_label": Labeling._labels,
}


def _best(labels: Sequence[str], probabilities: np.ndarray) -> dict[str, Any]:
  best = int(np.argmax(probabilities))
  named: Mapping[str, float] = dict(zip(labels, map(float, probabilities), strict=True))
  return {"label": labels[best], "probability": float(probabilities[best]), "probabilities": named}


def _ragged(ids: Sequence[int]) -> Ragged:
  return Ragged.full(np.array(ids, np.int32).reshape(1, -1))


def _padded(rows: Sequence[tuple[np.ndarray, np.ndarray]], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns tokens and token types [rows, length] and the lengths of rows."""
  tokens, types = np.zeros((2, len(rows), length), np.int32)
  for number, (ids, own) in enumerate(rows):
    tokens[number, : len(ids)], types[number, : len(ids)] = ids, own
  return tokens, types, np.array([len(ids) for ids, _ in rows])
