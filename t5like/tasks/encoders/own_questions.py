"""Questions of the user about passages, JSON lines in CORPUS_FILES: a task `NAME_spans`, in the form of SQuAD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.source_files import training_split
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.encoders.squad_spans import register_spans
from t5like.tasks.library.corpora import ColumnFiles, TextFiles
from t5like.tasks.preparation.datasets import json_objects
from t5like.tasks.preparation.files import OriginalFile
from t5like.tasks.sources import check_unicode

_EXPECTED = 'answers in the context: ["in 1066"], {"text": ["in 1066"], "answer_start": [12]}, or none'
_BETWEEN = "\x1f"  # ASCII's unit separator, between the answers


class Questions(ColumnFiles):
  """Rows of question, context and answers; each answer is written as its start and text."""

  def __init__(self, files: Mapping[str, str]):
    super().__init__(files, ("id", "question", "context", "answers"))

  @tf.autograph.experimental.do_not_convert
  def _read(self, path: tf.Tensor) -> tf.data.Dataset:
    return super()._read(path).map(_split_answers)

  def _values(self, file: OriginalFile, number: int, record: Mapping[str, Any]) -> list[str]:
    for name in ("question", "context"):
      if not isinstance(record.get(name), str):
        raise file.malformed(number, f"a string as {name}", record)
    found = placed_answers(record.get("answers"), record["context"])
    if found is None:
      raise file.malformed(number, _EXPECTED, record)
    values = [record["question"], record["context"], _BETWEEN.join(f"{start} {text}" for start, text in found)]
    check_unicode(file, number, values)
    return [f"{file}:{number}", *values]


def _split_answers(row: dict[str, tf.Tensor]) -> dict[str, Any]:
  written = tf.strings.split(row["answers"], _BETWEEN)
  written = tf.boolean_mask(written, written != "")
  starts = tf.strings.to_number(tf.strings.regex_replace(written, r"(?s) .*", ""), tf.int32)
  texts = tf.strings.regex_replace(written, r"^\d+ ", "")
  return row | {"answers": {"text": texts, "answer_start": starts}}


def placed_answers(given: Any, context: str) -> list[tuple[int, str]] | None:
  """Returns the start and text of each answer; None if one is not in the context where it should be."""
  given = {} if given is None else [given] if isinstance(given, str) else given
  texts = given.get("text", []) if isinstance(given, Mapping) else given
  if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
    return None
  starts = given.get("answer_start") if isinstance(given, Mapping) else None
  starts = [context.find(text) for text in texts] if starts is None else starts
  if not isinstance(starts, list) or len(starts) != len(texts) or not all(isinstance(start, int) for start in starts):
    return None
  found = list(zip(starts, texts, strict=True))
  right = all(start >= 0 and context.startswith(text, start) and _BETWEEN not in text for start, text in found)
  return found if right else None


def register_questions(name: str, files: Mapping[str, str]) -> seqio.Task:
  """Registers JSON lines {"question": ..., "context": ..., "answers": [...]}; a context need not have an answer.

  Questions without one in the training split are learned and scored as in SQuAD 2.0.
  """
  paths = TextFiles(files).list_shards(training_split(files))
  records = (record for path in paths for _, record in json_objects(OriginalFile(storage.as_path(path))))
  counts = [len(placed_answers(record.get("answers"), str(record.get("context"))) or ()) for record in records]
  if not any(counts):
    raise UserError(f"no row of task {name!r} has an answer", expected=_EXPECTED)
  metric = encoder_scores.squad_windows if all(counts) else encoder_scores.squad_v2_windows
  return register_spans(name, Questions(files), metric)
