"""Labeled rows of the user, JSON lines in CORPUS_FILES; the end of the task's name determines their fields."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.source_files import training_split
from t5like.tasks import metrics, postprocessors
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.encoders.classification import register_labels
from t5like.tasks.encoders.forms import class_labels, multi_labels, score_labels
from t5like.tasks.encoders.tagging import register_tagging
from t5like.tasks.library import glue
from t5like.tasks.library.corpora import ColumnFiles, TextFiles, first_row
from t5like.tasks.preparation.datasets import json_objects
from t5like.tasks.preparation.files import OriginalFile
from t5like.tasks.preprocessors import text_to_text
from t5like.tasks.registry import default_features, register_task
from t5like.tasks.sources import check_unicode

_PAIR, _LABEL, _SUFFIX = "text_pair", "label", "_classification"
_TEXTS = ("text", _PAIR)
_MOST_CLASSES = 1000
_LARGEST = 3e38  # float32
_BETWEEN = "\x1f"  # ASCII's unit separator, between the texts of a list


def _text(value: Any) -> list[str] | None:
  return [value] if isinstance(value, str) else None


def _name(value: Any) -> list[str] | None:
  """Returns a class as text; None if it is neither a word nor a whole number."""
  if isinstance(value, str):
    return [value] if value.strip() and _BETWEEN not in value else None
  return [str(int(value))] if isinstance(value, int) else None


def _number(value: Any) -> list[str] | None:
  return [repr(float(value))] if isinstance(value, int | float) and abs(value) < _LARGEST else None


def _words(value: Any) -> list[str] | None:
  are_words = isinstance(value, list) and all(isinstance(word, str) and _BETWEEN not in word for word in value)
  return value if are_words else None


def _names(value: Any) -> list[str] | None:
  names = [_name(item) for item in value] if isinstance(value, list) else [None]
  return None if None in names else [name for (name,) in names]


@dataclasses.dataclass(frozen=True)
class Column:
  """A field of rows.

  Attributes:
    expected: the type of its values, for error messages.
    parts: returns the texts of a value; None for a value of another type.
    is_list: whether its values are lists.
    names: the allowed texts; (): any.
  """

  expected: str
  parts: Callable[[Any], list[str] | None]
  is_list: bool = False
  names: tuple[str, ...] = ()


TEXT = Column("a string", _text)
CLASS = Column("a word or a whole number", _name)
SCORE = Column("a number", _number)
NAMES = Column("a list of words or whole numbers", _names, is_list=True)
WORDS = Column("a list of strings", _words, is_list=True)


class LabeledColumns(ColumnFiles):
  """Fields of JSON lines, as text."""

  def __init__(self, files: Mapping[str, str], columns: Mapping[str, Column]):
    super().__init__(files, tuple(columns))
    self.columns, self._known = columns, {name: set(column.names) for name, column in columns.items()}
    self.settings = (*columns, *(name for column in columns.values() for name in column.names))

  @tf.autograph.experimental.do_not_convert
  def _read(self, path: tf.Tensor) -> tf.data.Dataset:
    def split(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      lists = {name: tf.strings.split(row[name], _BETWEEN) for name, column in self.columns.items() if column.is_list}
      return row | lists

    return super()._read(path).map(split)

  def _values(self, file: OriginalFile, number: int, record: Mapping[str, Any]) -> list[str]:
    if record.get(_PAIR) is not None and _PAIR not in self.columns:
      raise file.malformed(number, f"no {_PAIR}, like the first row of the training split", record)
    found = {name: column.parts(record.get(name)) for name, column in self.columns.items()}
    for name, column in self.columns.items():
      if found[name] is None:
        raise file.malformed(number, f"{column.expected} as {name}", record)
      if column.names and not self._known[name].issuperset(found[name]):
        raise file.malformed(number, f"{name} of the training split ({', '.join(column.names[:20])})", record)
    if "tags" in found and not 0 < len(found["tokens"]) == len(found["tags"]):
      raise file.malformed(number, "tokens, and a tag for each", record)
    values = [_BETWEEN.join(texts) for texts in found.values()]
    check_unicode(file, number, values)
    return values

  def names(self, split: str, field: str) -> list[str]:
    """Returns the texts of a field in a split: numbers in their order, words in that of the alphabet."""
    column = self.fields.index(field)
    lists = (row[column].split(_BETWEEN) for path in self.list_shards(split) for row in self._rows(path))
    found = {name for names in lists for name in names if name}
    numbers = all(name.lstrip("-").isdecimal() for name in found)
    return sorted(found, key=int) if numbers else sorted(found)


def register_text_to_text(name: str, files: Mapping[str, str]) -> seqio.Task:
  """Registers JSON lines {"inputs": ..., "targets": ...}, scored by the share of answers that are right."""
  fields = ("inputs", "targets")
  _check_fields(name, files, fields, '{"inputs": ..., "targets": ...}')
  return register_task(
    name,
    source=LabeledColumns(files, dict.fromkeys(fields, TEXT)),
    preprocessors=text_to_text(),
    output_features=default_features(),
    postprocess_fn=postprocessors.strip_text,
    metric_fns=[metrics.accuracy],
  )


def register_classification(name: str, files: Mapping[str, str]) -> seqio.Task:
  """Registers JSON lines {"text": ..., "label": ...}, optionally with "text_pair"; the training split has all classes.

  A label is a class; a score, if some have a fraction such as 2.5 or 2.0; or a list of any number of classes.
  """
  row = _check_fields(name, files, ("text", _LABEL), '{"text": ..., "label": ...}, optionally "text_pair"')
  texts = tuple(field for field in _TEXTS if field in row)
  label = _label_column(files)
  columns = dict.fromkeys(texts, TEXT) | {_LABEL: label}
  found = LabeledColumns(files, columns).names(training_split(files), _LABEL)  # also checks the rows
  classes = () if label == SCORE else _checked_number(name, "labels", found)
  feature, postprocessor, metric_fns = {
    CLASS: (class_labels(classes), encoder_scores.class_id, [metrics.accuracy]),
    NAMES: (multi_labels(classes), encoder_scores.label_marks, [encoder_scores.multi_label_f1]),
    SCORE: (score_labels(), encoder_scores.regression, [*glue.METRICS["stsb"], metrics.mean_squared_error]),
  }[label]
  return register_labels(
    name.removesuffix(_SUFFIX),
    LabeledColumns(files, columns | {_LABEL: dataclasses.replace(label, names=classes)}),
    functools.partial(labeled_texts, texts=texts, classes=classes, several=label.is_list),
    feature,
    postprocessor,
    metric_fns,
  )


@seqio.map_over_dataset
def labeled_texts(
  example: dict[str, tf.Tensor], texts: Sequence[str], classes: Sequence[str], several: bool
) -> dict[str, tf.Tensor]:
  """Returns the texts, and the label as a class number, as a 0 or 1 for each class, or, without classes, as a score."""
  label = example[_LABEL]
  if classes:
    marks = tf.equal(tf.reshape(label, [-1, 1]), tf.constant([list(classes)]))  # [labels, classes]
    label = tf.cast(tf.reduce_any(marks, axis=0), tf.int32) if several else tf.argmax(marks[0])
  else:
    label = tf.strings.to_number(label)
  return dict(zip(("first", "second"), (example[name] for name in texts), strict=False)) | {"label": label}


def register_tags(name: str, files: Mapping[str, str]) -> seqio.Task:
  """Registers JSON lines {"tokens": [...], "tags": [...]}: words, and a tag for each. O is class 0, if there is one."""
  _check_fields(name, files, ("tokens", "tags"), '{"tokens": [...], "tags": [...]}')
  columns = {"tokens": WORDS, "tags": NAMES}
  found = LabeledColumns(files, columns).names(training_split(files), "tags")
  tags = _checked_number(name, "tags", sorted(found, key=lambda tag: tag != "O"))
  return register_tagging(name, LabeledColumns(files, columns | {"tags": dataclasses.replace(NAMES, names=tags)}), tags)


def _checked_number(task: str, what: str, names: Sequence[str]) -> tuple[str, ...]:
  """Returns the names of classes; raises UserError if there are too few or too many."""
  if not 1 < len(names) <= _MOST_CLASSES:
    raise UserError(f"task {task!r} has {len(names):,} different {what}", expected=f"2 to {_MOST_CLASSES:,}")
  return tuple(names)


def _label_column(files: Mapping[str, str]) -> Column:
  """Returns what the labels of the training split are."""
  paths = TextFiles(files).list_shards(training_split(files))
  records = (record for path in paths for _, record in json_objects(OriginalFile(storage.as_path(path))))
  kinds = {type(record.get(_LABEL)) for record in records}
  return NAMES if list in kinds else SCORE if float in kinds else CLASS


def _check_fields(name: str, files: Mapping[str, str], fields: Sequence[str], expected: str) -> Mapping[str, Any]:
  """Returns the first row; raises UserError if it lacks a field."""
  _, row = first_row(TextFiles(files), training_split(files))
  if missing := set(fields) - row.keys():
    raise UserError(
      f"the rows of task {name!r} have no {' and no '.join(sorted(missing))}",
      found=", ".join(row) or "no fields",
      expected=expected,
    )
  return row
