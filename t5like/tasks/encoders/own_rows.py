"""Labeled rows of the user's own, JSON lines in CORPUS_FILES: `NAME_text_to_text` and `NAME_classification`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.files import storage
from t5like.tasks import metrics, postprocessors
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.encoders.classification import segments
from t5like.tasks.encoders.forms import class_labels, encode_segments, encoder_features
from t5like.tasks.library.corpora import TextFiles
from t5like.tasks.preparation.datasets import json_objects
from t5like.tasks.preparation.files import OriginalFile
from t5like.tasks.preprocessors import text_to_text
from t5like.tasks.registry import default_features, register_task
from t5like.tasks.sources import FileBlocks, check_unicode

_BATCH = 1024
_TEXTS, _LABEL = ("text", "text_pair"), "label"
_MOST_CLASSES = 1000


class Columns(TextFiles):
  """Fields of JSON lines, of any number of files: texts, and a label that may be a whole number."""

  def __init__(self, files: Mapping[str, Any], fields: Sequence[str], classes: Sequence[str] = ()):
    super().__init__(files)
    self.fields, self.classes = tuple(fields), tuple(classes)
    self.settings = (*self.fields, *self.classes)
    self._blocks = FileBlocks(self._rows, len(self.fields), _BATCH)
    self._first_split = "train" if "train" in files else next(iter(files))

  @tf.autograph.experimental.do_not_convert
  def _read(self, path: tf.Tensor) -> tf.data.Dataset:
    return self._blocks.dataset(path).map(lambda *values: dict(zip(self.fields, values, strict=True)))

  def _rows(self, path: str) -> Iterator[list[str]]:
    file = OriginalFile(storage.as_path(path))
    for number, record in json_objects(file):
      values = [record.get(field) for field in self.fields if field != _LABEL]
      if not all(isinstance(value, str) for value in values):
        raise file.malformed(number, f"texts as {', '.join(f for f in self.fields if f != _LABEL)}", record)
      if _LABEL in self.fields:
        label = label_text(record.get(_LABEL))
        if label is None or (self.classes and label not in self.classes):
          known = ", ".join(self.classes[:20]) or "a word or a whole number"
          raise file.malformed(number, f"a label of the training split ({known})" if self.classes else known, record)
        values.append(label)
      check_unicode(file, number, values)
      yield values

  def first(self) -> Mapping[str, Any]:
    """Returns the first row of all."""
    path = self.list_shards(self._first_split)[0]
    row = next((record for _, record in json_objects(OriginalFile(storage.as_path(path)))), None)
    if row is None:
      raise UserError(f"{path} is empty", expected="JSON lines")
    return row

  def labels(self) -> list[str]:
    """Returns the labels of the training split: numbers in their order, words in that of the alphabet."""
    found = set()
    for path in self.list_shards(self._first_split):
      found |= {row[-1] for row in self._rows(path)}
    numbers = all(label.lstrip("-").isdecimal() for label in found)
    return sorted(found, key=int) if numbers else sorted(found)


def label_text(label: Any) -> str | None:
  """Returns a label as text; None if it is no word or whole number."""
  if isinstance(label, str):
    return label if label.strip() else None
  return str(int(label)) if isinstance(label, int) else None


def register_text_to_text(name: str, files: Mapping[str, str]) -> seqio.Task:
  """Registers JSON lines {"inputs": ..., "targets": ...}, scored by the share of answers that are right."""
  source = Columns(files, ("inputs", "targets"))
  if missing := {"inputs", "targets"} - source.first().keys():
    raise _missing(name, missing, source.first(), '{"inputs": ..., "targets": ...}')
  return register_task(
    name,
    source=source,
    preprocessors=text_to_text(),
    output_features=default_features(),
    postprocess_fn=postprocessors.strip_text,
    metric_fns=[metrics.accuracy],
  )


def register_classification(name: str, files: Mapping[str, str]) -> seqio.Task:
  """Registers JSON lines {"text": ..., "label": ...}, optionally with "text_pair"; classes are the training split's."""
  row = Columns(files, ()).first()
  if missing := {"text", _LABEL} - row.keys():
    raise _missing(name, missing, row, '{"text": ..., "label": ...}, optionally "text_pair"')
  texts = tuple(field for field in _TEXTS if field in row)
  classes = Columns(files, (*texts, _LABEL)).labels()
  if not 1 < len(classes) <= _MOST_CLASSES:
    raise UserError(f"task {name!r} has {len(classes):,} different labels", expected=f"2 to {_MOST_CLASSES:,}")
  return register_task(
    name,
    source=Columns(files, (*texts, _LABEL), classes),
    preprocessors=[
      functools.partial(segments, texts=texts, label_names=tuple(classes)),
      seqio.CacheDatasetPlaceholder(),
      encode_segments,
    ],
    output_features=encoder_features(labels=class_labels(classes)),
    postprocess_fn=encoder_scores.class_id,
    metric_fns=[metrics.accuracy],
  )


def _missing(name: str, missing: set[str], row: Mapping[str, Any], expected: str) -> UserError:
  return UserError(
    f"the rows of task {name!r} have no {' and no '.join(sorted(missing))}",
    found=", ".join(row) or "no fields",
    expected=expected,
  )
