"""Rows for heads, built from a token cache: labeled texts, choices, tagged words, answer spans, texts to embed.

Batches have the names of `EncoderFeatureConverter` in tasks/encoders and the same bytes. Like all row sources they are
functions of the seed and the row number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from t5like.data.cache import TokenCache
from t5like.data.layouts import Batch
from t5like.data.rows import shuffled
from t5like.errors import UserError
from t5like.objectives import SpecialTokens
from t5like.objectives.ragged import Ragged, within
from t5like.objectives.segments import TEXT_FIELDS, PairForm, Segments, TaggedRows, join_words
from t5like.objectives.spans import LONGEST_QUESTION, STRIDE, WindowSettings, cut_windows

_CHECKED = 4096  # examples whose tags are read at a time


@dataclasses.dataclass(frozen=True)
class LabelForm:
  """The labels of a task, or of a head."""

  name: str  # classification, multi_label, regression, choices, tagging, spans or embedding
  labels: tuple[str, ...] = ()
  choices: int = 0  # per question
  grouped: bool = False  # the examples of a question are its candidate answers
  stride: int = STRIDE
  longest_question: int | None = LONGEST_QUESTION
  # Of embedding: the texts of a row, the kind of its label ("classification", "regression" or none), whether the first
  # text is read twice, for two dropout masks (SimCSE), and the ids before and after a text (None: the family's).
  texts: int = 0
  target: str = ""
  twice: bool = False
  around: tuple[int | None, int | None] | None = None

  @classmethod
  def of(cls, cache: TokenCache) -> LabelForm | None:
    """Returns the form of a cache's task; None if it has inputs and targets, or is a corpus."""
    return cls.read(cache.scoring.get("form"))

  @classmethod
  def read(cls, found: Mapping[str, Any] | None) -> LabelForm | None:
    """Returns the form that tasks.caching.label_forms describes; None if there is none."""
    if not isinstance(found, Mapping):
      return None
    return cls(**{**found, "labels": tuple(found.get("labels", ()))})


@dataclasses.dataclass(frozen=True)
class LabeledRows:
  """One row per example, shuffled every epoch. Subclasses read the rows of a form."""

  cache: TokenCache
  form: LabelForm
  length: int
  special: SpecialTokens
  seed: int

  pack: ClassVar[bool] = False

  @property
  def rows_per_epoch(self) -> int:
    return self.cache.examples

  def rows(self, numbers: np.ndarray) -> Batch:
    _, rows = shuffled(numbers, self.rows_per_epoch, self.seed)
    return self.read(rows)

  def read(self, rows: np.ndarray) -> Batch:
    """Returns these rows, in the order of the cache."""
    raise NotImplementedError

  def check(self) -> None:
    """Raises UserError if a label is not one of the form."""

  @property
  def sizes(self) -> np.ndarray | None:
    """The tokens of each row, in the order of the cache; None if padding counts: all rows then have `length`."""
    return None

  def longest(self, numbers: np.ndarray) -> np.ndarray:
    """Returns the tokens of rows, for `numbers` as in `rows`."""
    _, rows = shuffled(numbers, self.rows_per_epoch, self.seed)
    return self.sizes[rows]

  @cached_property
  def pair_form(self) -> PairForm:
    return PairForm.of(self.special)

  @property
  def task(self) -> str:
    return self.cache.manifest["description"]["task"]

  @property
  def efficiency(self) -> float:
    """The fraction of tokens that are not padding, of the first rows."""
    first = self.read(np.arange(min(self.rows_per_epoch, 256)))
    return float(np.mean(first["encoder_segment_ids"]))

  def _labels_of_fields(self, dtype: type) -> np.ndarray:
    return np.array([example["label"] for example in self.cache.fields()], dtype)


class TextRows(LabeledRows):
  """One text or two, with a class, a score, or a 0 or 1 for each of several labels."""

  @cached_property
  def labels(self) -> np.ndarray:
    return self._labels_of_fields(np.float32 if self.form.name == "regression" else np.int32)

  @cached_property
  def sizes(self) -> np.ndarray:
    return self._text_sizes()

  def _text_sizes(self) -> np.ndarray:
    tokens = self.cache.lengths("first") + self.pair_form.around
    if "second" in self.cache.features:
      tokens = tokens + self.cache.lengths("second") + self.pair_form.separators
    return np.minimum(tokens, self.length)

  def read(self, rows: np.ndarray) -> Batch:
    return self._texts(rows) | {"labels": self.labels[rows]}

  def _texts(self, rows: np.ndarray) -> Batch:
    second = self.cache.texts("second", rows) if "second" in self.cache.features else None
    joined = self.pair_form.join(self.cache.texts("first", rows), second, self.length)
    return encoder_rows(joined.tokens, joined.token_types, joined.lengths)

  def check(self) -> None:
    _check_labels(self.task, self.labels, self.form.name, self.form.labels)


class ChoiceRows(TextRows):
  """Questions with the same number of candidate answers, [rows, choices, length]; labels are the right ones."""

  @property
  def rows_per_epoch(self) -> int:
    return self.cache.examples // self.form.choices

  @cached_property
  def labels(self) -> np.ndarray:
    """The number of the right choice; -1 if it is withheld."""
    marks = self._labels_of_fields(np.int32).reshape(-1, self.form.choices)
    return np.where(np.any(marks < 0, axis=1), -1, np.argmax(marks, axis=1)).astype(np.int32)

  @cached_property
  def sizes(self) -> np.ndarray:
    whole = self.rows_per_epoch * self.form.choices
    return np.max(self._text_sizes()[:whole].reshape(-1, self.form.choices), axis=1)

  def read(self, rows: np.ndarray) -> Batch:
    choices = self.form.choices
    texts = self._texts((rows[:, None] * choices + np.arange(choices)[None, :]).reshape(-1))
    texts = {name: x.reshape(len(rows), choices, *x.shape[1:]) for name, x in texts.items()}
    return texts | {"labels": self.labels[rows]}

  def check(self) -> None:
    found = choices_of(self.cache)
    if found != self.form.choices:
      raise UserError(
        f"task {self.task!r} does not have {self.form.choices} choices per question",
        found=found or "questions with different numbers of candidates",
        try_="--gin.HEAD=@ClassificationHead(), which judges every candidate separately",
      )
    if np.any(self.labels < 0):
      raise UserError(f"{np.sum(self.labels < 0):,} questions of task {self.task!r} have no right answer")


class TagRows(LabeledRows):
  """Words with tags, at the first piece of each word."""

  def joined(self, rows: np.ndarray) -> TaggedRows:
    pieces, sizes, tags = (self.cache.texts(name, rows) for name in ("words", "word_lengths", "tags"))
    return join_words(pieces, sizes, tags, self.length, self.pair_form)

  @cached_property
  def sizes(self) -> np.ndarray:
    return np.minimum(self.cache.lengths("words") + self.pair_form.around, self.length)

  def read(self, rows: np.ndarray) -> Batch:
    joined = self.joined(rows)
    batch = encoder_rows(joined.tokens, np.zeros_like(joined.tokens), joined.lengths)
    weights = (joined.word_numbers >= 0).astype(np.float32)
    return batch | {"encoder_target_tokens": joined.targets, "encoder_loss_weights": weights}

  def check(self) -> None:
    for first in range(0, self.cache.examples, _CHECKED):
      tags = self.cache.texts("tags", np.arange(first, min(first + _CHECKED, self.cache.examples)))
      _check_classes(self.task, tags.tokens[tags.valid], self.form.labels)


class SpanRows(LabeledRows):
  """Windows of passages after a question, with the first and last token of the answer.

  Padding counts in the softmax over positions, and most windows are full: there are no `sizes`.
  """

  @property
  def settings(self) -> WindowSettings:
    return WindowSettings(self.length, self.form.stride, longest_question=self.form.longest_question)

  @cached_property
  def _windows(self) -> np.ndarray:
    """The windows before each example, and all: [examples + 1]."""
    questions = self.cache.lengths("first").astype(np.int64)
    if self.form.longest_question is not None:
      questions = np.minimum(questions, self.form.longest_question)
    form = self.pair_form
    room = self.length - questions - form.around - form.separators
    if room.min(initial=1) < 1:
      self.settings.places(form, int(questions.max()), 0)  # raises UserError
    beyond = np.maximum(self.cache.lengths("second") - room, 0)
    return np.concatenate([[0], np.cumsum(-(-beyond // np.minimum(self.form.stride, room)) + 1)])

  @property
  def rows_per_epoch(self) -> int:
    return int(self._windows[-1])

  def read(self, rows: np.ndarray) -> Batch:
    examples = np.searchsorted(self._windows, rows, side="right") - 1
    questions, passages, answers = (self.cache.texts(name, examples) for name in ("first", "second", "answer"))
    found = []
    for number, window in enumerate(rows - self._windows[examples]):
      cut = (x.tokens[number, : x.lengths[number]] for x in (questions, passages, answers))
      question, passage, answer = cut
      windows = cut_windows(
        self.pair_form, question, passage, tuple(map(int, answer)) if len(answer) else None, self.settings
      )
      found.append([x[window] for x in (windows.tokens, windows.token_types, windows.lengths, windows.labels)])
    tokens, token_types, lengths, labels = (np.stack(column) for column in zip(*found, strict=True))
    return encoder_rows(tokens, token_types, lengths) | {"labels": labels}


class EmbeddingRows(LabeledRows):
  """Texts that are embedded separately, [rows, texts, length], with a class or a score of the row if there is one."""

  @property
  def fields(self) -> tuple[str, ...]:
    return ("first", "first") if self.form.twice else TEXT_FIELDS[: self.form.texts]

  @cached_property
  def labels(self) -> np.ndarray:
    return self._labels_of_fields(np.float32 if self.form.target == "regression" else np.int32)

  def read(self, rows: np.ndarray) -> Batch:
    joined = [self._join(self.cache.texts(field, rows)) for field in self.fields]
    tokens, types, lengths = (np.stack(column, axis=1) for column in zip(*joined, strict=True))
    flat = encoder_rows(tokens.reshape(-1, self.length), types.reshape(-1, self.length), lengths.reshape(-1))
    batch = {name: x.reshape(len(rows), -1, self.length) for name, x in flat.items()}
    return batch | ({"labels": self.labels[rows]} if self.form.target else {})

  def _join(self, texts: Ragged) -> Segments:
    if self.form.around is None:
      return self.pair_form.join(texts, None, self.length)
    start, end = self.form.around
    if end is not None:
      return PairForm(start, end).join(texts, None, self.length)
    rows = PairForm(start, 0).join(texts, None, self.length + 1)  # the last token, 0, becomes padding
    return Segments(rows.tokens[:, :-1], rows.token_types[:, :-1], rows.lengths - 1)

  def check(self) -> None:
    if missing := [field for field in self.fields if field not in self.cache.features]:
      count = sum(field in self.cache.features for field in TEXT_FIELDS)
      raise UserError(
        f"task {self.task!r} has {count} texts per row, and the head embeds {len(self.fields)}",
        missing=missing[0],
        try_="a task of pairs or triplets; for single texts --gin.EmbeddingHead.loss=simcse",
      )
    if self.form.target:
      _check_labels(self.task, self.labels, self.form.target, self.form.labels)


SOURCES: dict[str, type[LabeledRows]] = {
  "classification": TextRows,
  "multi_label": TextRows,
  "regression": TextRows,
  "choices": ChoiceRows,
  "tagging": TagRows,
  "spans": SpanRows,
  "embedding": EmbeddingRows,
}


def labeled_rows(cache: TokenCache, form: LabelForm, length: int, special: SpecialTokens, seed: int) -> LabeledRows:
  """Returns the rows of a task for a head of this form."""
  return SOURCES[form.name](cache, form, length, special, seed)


def encoder_rows(tokens: np.ndarray, token_types: np.ndarray, lengths: np.ndarray) -> Batch:
  """Returns the features of an encoder's rows [rows, length]."""
  real = within(np.asarray(lengths), tokens.shape[1])
  return {
    "encoder_input_tokens": tokens,
    "encoder_token_types": token_types,
    "encoder_segment_ids": real.astype(np.int32),
    "encoder_positions": np.where(real, np.arange(tokens.shape[1], dtype=np.int32)[None, :], np.int32(0)),
  }


def blank_labels(form: LabelForm, length: int, rows: int) -> Batch:
  """Returns a batch without text, in the shapes of real batches."""
  texts = {"choices": form.choices, "embedding": form.texts}.get(form.name)
  shape = (rows, texts, length) if texts else (rows, length)
  names = ("encoder_input_tokens", "encoder_token_types", "encoder_segment_ids", "encoder_positions")
  batch = {name: np.zeros(shape, np.int32) for name in names}
  if form.name == "tagging":
    zeros = np.zeros(shape, np.int32)
    return batch | {"encoder_target_tokens": zeros, "encoder_loss_weights": zeros.astype(np.float32)}
  kind = form.target if form.name == "embedding" else form.name
  labels = {"regression": np.zeros(rows, np.float32), "spans": np.zeros((rows, 2), np.int32)}
  labels["multi_label"] = np.zeros((rows, len(form.labels)), np.int32)
  return batch | ({"labels": labels.get(kind, np.zeros(rows, np.int32))} if kind else {})


def choices_of(cache: TokenCache) -> int:
  """Returns the number of candidates per question; 0 if it differs, or if not exactly one is right where known."""
  groups, labels = [], []
  for example in cache.fields():
    groups.append(str(example.get("group")))
    labels.append(int(example["label"]))
  size = next((n for n, group in enumerate(groups) if group != groups[0]), len(groups))
  if size < 2 or len(groups) % size:
    return 0
  rows = [groups[n : n + size] for n in range(0, len(groups), size)]
  marks = np.array(labels).reshape(-1, size)
  one_right = np.all((np.sum(marks == 1, axis=1) == 1) | np.any(marks < 0, axis=1))
  return (
    size if one_right and all(len(set(row)) == 1 for row in rows) and len({row[0] for row in rows}) == len(rows) else 0
  )


def _check_labels(task: str, found: np.ndarray, kind: str, labels: tuple[str, ...]) -> None:
  """Checks the labels of rows: classes, marks, or scores."""
  if kind == "classification":
    _check_classes(task, found, labels)
  elif kind == "multi_label":
    _check_marks(task, found, labels)
  elif not np.all(np.isfinite(found)):
    raise UserError(f"task {task!r} has labels that are not finite", found=int(np.sum(~np.isfinite(found))))


def _check_marks(task: str, found: np.ndarray, labels: tuple[str, ...]) -> None:
  if found.ndim != 2 or found.shape[1] != len(labels) or np.any((found != 0) & (found != 1)):
    raise UserError(
      f"task {task!r} has labels that are not a 0 or 1 for each of the head's {len(labels)} labels",
      expected=f"{len(labels)} numbers ({', '.join(labels[:8])}{', ...' if len(labels) > 8 else ''})",
    )


def _check_classes(task: str, found: np.ndarray, labels: tuple[str, ...]) -> None:
  wrong = (found < 0) | (found >= len(labels))
  if np.any(wrong):
    value = int(found[np.argmax(wrong)])
    raise UserError(
      f"task {task!r} has labels outside the head's classes: {value}" + (" (withheld)" if value == -1 else ""),
      count=f"{np.sum(wrong):,} of {len(found):,}",
      expected=f"0 to {len(labels) - 1} ({', '.join(labels[:8])}{', ...' if len(labels) > 8 else ''})",
    )
