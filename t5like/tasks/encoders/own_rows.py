"""Labeled rows of the user's own, JSON lines in CORPUS_FILES: `NAME_text_to_text` and `NAME_classification`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import seqio

from t5like.errors import UserError
from t5like.tasks import metrics, postprocessors
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.encoders.classification import register_labels, segments
from t5like.tasks.encoders.forms import class_labels
from t5like.tasks.library.corpora import ColumnFiles, TextFiles, first_row
from t5like.tasks.preparation.files import OriginalFile
from t5like.tasks.preprocessors import text_to_text
from t5like.tasks.registry import default_features, register_task
from t5like.tasks.sources import check_unicode

_TEXTS, _LABEL, _SUFFIX = ("text", "text_pair"), "label", "_classification"
_MOST_CLASSES = 1000


class LabeledColumns(ColumnFiles):
  """Texts of JSON lines, and a label that may be a whole number; one of `classes`, if they are given."""

  def __init__(self, files: Mapping[str, str], fields: Sequence[str], classes: Sequence[str] = ()):
    super().__init__(files, fields)
    self.classes = tuple(classes)
    self.settings = (*self.fields, *self.classes)

  def _values(self, file: OriginalFile, number: int, record: Mapping[str, Any]) -> list[str]:
    texts = [field for field in self.fields if field != _LABEL]
    values = [record.get(field) for field in texts]
    if not all(isinstance(value, str) for value in values):
      raise file.malformed(number, f"texts as {', '.join(texts)}", record)
    if _LABEL in self.fields:
      values.append(_label_text(record.get(_LABEL)))
      if values[-1] is None:
        raise file.malformed(number, "a word or a whole number as label", record)
      if self.classes and values[-1] not in self.classes:
        raise file.malformed(number, f"a label of the training split ({', '.join(self.classes[:20])})", record)
    check_unicode(file, number, values)
    return values

  def labels(self, split: str) -> list[str]:
    """Returns the labels of a split: numbers in their order, words in that of the alphabet."""
    found = {row[-1] for path in self.list_shards(split) for row in self._rows(path)}
    numbers = all(label.lstrip("-").isdecimal() for label in found)
    return sorted(found, key=int) if numbers else sorted(found)


def register_text_to_text(name: str, files: Mapping[str, str]) -> seqio.Task:
  """Registers JSON lines {"inputs": ..., "targets": ...}, scored by the share of answers that are right."""
  fields = ("inputs", "targets")
  _check_fields(name, files, fields, '{"inputs": ..., "targets": ...}')
  return register_task(
    name,
    source=LabeledColumns(files, fields),
    preprocessors=text_to_text(),
    output_features=default_features(),
    postprocess_fn=postprocessors.strip_text,
    metric_fns=[metrics.accuracy],
  )


def register_classification(name: str, files: Mapping[str, str]) -> seqio.Task:
  """Registers JSON lines {"text": ..., "label": ...}, optionally with "text_pair"; classes are the training split's."""
  row = _check_fields(name, files, ("text", _LABEL), '{"text": ..., "label": ...}, optionally "text_pair"')
  texts = tuple(field for field in _TEXTS if field in row)
  classes = LabeledColumns(files, (*texts, _LABEL)).labels(_training_split(files))
  if not 1 < len(classes) <= _MOST_CLASSES:
    raise UserError(f"task {name!r} has {len(classes):,} different labels", expected=f"2 to {_MOST_CLASSES:,}")
  return register_labels(
    name.removesuffix(_SUFFIX),
    LabeledColumns(files, (*texts, _LABEL), classes),
    functools.partial(segments, texts=texts, label_names=tuple(classes)),
    class_labels(classes),
    encoder_scores.class_id,
    [metrics.accuracy],
  )


def _check_fields(name: str, files: Mapping[str, str], fields: Sequence[str], expected: str) -> Mapping[str, Any]:
  """Returns the first row; raises UserError if it lacks a field."""
  _, row = first_row(TextFiles(files), _training_split(files))
  if missing := set(fields) - row.keys():
    raise UserError(
      f"the rows of task {name!r} have no {' and no '.join(sorted(missing))}",
      found=", ".join(row) or "no fields",
      expected=expected,
    )
  return row


def _training_split(files: Mapping[str, str]) -> str:
  return "train" if "train" in files else next(iter(files))


def _label_text(label: Any) -> str | None:
  """Returns a label as text; None if it is no word or whole number."""
  if isinstance(label, str):
    return label if label.strip() else None
  return str(int(label)) if isinstance(label, int) else None
