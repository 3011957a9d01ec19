"""The first examples of a task at every stage: raw, as text, as tokens, after an objective."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5like.objectives import Draws, Lengths, Objective, SpecialTokens
from t5like.objectives.worked_examples import CorruptedRow, corrupted_rows
from t5like.tasks import objective_adapter
from t5like.tasks.caching import finished_tokens, text_pipeline
from t5like.tasks.caching.cache_kind import Steps
from t5like.tasks.encoders.checks import is_encoder_form, read_tokens
from t5like.tasks.missing_data import explain_data_errors
from t5like.tasks.registry import check_split
from t5like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Preview:
  raw: dict[str, Any]  # numpy values and bytes, as read; a line of text has the key "line"
  examples: list[dict[str, Any]]  # zero or more examples made from the row: text, or tokens for encoders


def previews(task: seqio.Task, split: str, count: int, length: int) -> Iterator[Preview]:
  """Yields the first rows of the source with the examples made from each; `length` is that of an encoder's inputs.

  Preprocessors that work on tokens or on several rows at once are not run here: see `finished_examples`.
  """
  check_split(task, split)
  with explain_data_errors(task):
    rows = task.source.get_dataset(split=split, shuffle=False)
    for number in range(count):
      row = rows.skip(number).take(1)
      for raw in row.as_numpy_iterator():
        raw = raw if isinstance(raw, dict) else {"line": raw}
        row_task = _with_rows(task, row, split)
        if is_encoder_form(task):
          yield Preview(raw, read_tokens(row_task, split, length, None)[0])
        elif Steps.of(task).tokenize is None:
          yield Preview(raw, [])
        else:
          yield Preview(raw, list(text_pipeline.text_examples(row_task, split)))


def finished_examples(
  task: seqio.Task, split: str, vocabulary: Vocabulary, count: int | None, lengths: dict[str, int]
) -> list[dict[str, Any]]:
  """Returns the first examples after all preprocessors of the task, as tokens of a model's vocabulary."""
  model_task = finished_tokens.for_model(task, vocabulary)
  limit = finished_tokens.id_limit(model_task, vocabulary)
  with explain_data_errors(task):
    return list(itertools.islice(finished_tokens.token_examples(model_task, split, lengths, limit), count))


def _with_rows(task: seqio.Task, rows: tf.data.Dataset, split: str) -> seqio.Task:
  """Returns the same task with `rows` as its data."""

  def read(split: str, shuffle_files: bool) -> tf.data.Dataset:
    del split, shuffle_files
    return rows

  return task.replace(name=f"{task.name}_preview", source=seqio.FunctionDataSource(read, splits=[split]))


def corrupted(
  task: seqio.Task,
  split: str,
  vocabulary: Vocabulary,
  objective: Objective,
  lengths: Lengths,
  count: int,
  seed: int,
) -> list[CorruptedRow]:
  """Applies an objective to the first rows of a corpus, as in training but without shuffling."""
  special = SpecialTokens.of(vocabulary)
  objective.check(lengths, special)
  tokens: list[int] = []
  documents: list[int] = []
  with explain_data_errors(task):
    for example in itertools.islice(text_pipeline.text_examples(task, split), objective_adapter.DOCUMENTS):
      document = vocabulary.encode(example["targets"])
      if document:
        tokens += document
        documents.append(len(document))
      # One document more than the rows need, for objectives that compare documents.
      if len(tokens) - len(document) >= count * lengths.raw and len(documents) >= 2 * count:
        break
  rows, numbers = objective_adapter.cut(
    np.array(tokens, np.int32), np.array(documents), objective, lengths.raw, special
  )
  return corrupted_rows(objective(rows, Draws.of(seed, 0, numbers), special))[:count]


def readable_fields(fields: Mapping[str, Any], most_characters: int) -> dict[str, str]:
  """Returns the fields of an example as text, nested ones as `outer/inner`; long texts and lists are truncated."""
  readable = {}
  for name, value in fields.items():
    if isinstance(value, dict):
      readable |= {f"{name}/{part}": text for part, text in readable_fields(value, most_characters).items()}
    else:
      readable[name] = _readable(value, most_characters)
  return readable


def _readable(value: Any, most: int) -> str:
  value = value.tolist() if hasattr(value, "tolist") else value
  if isinstance(value, bytes):
    value = value.decode("utf-8", errors="replace")
  if isinstance(value, list):
    value = "[" + ", ".join(_readable(item, most) for item in value[:20]) + (", …]" if len(value) > 20 else "]")
  text = str(value)
  if len(text) > most:
    text = f"{text[:most]} … ({len(text):,} characters)"
  return text.replace("\n", "⏎ ") or "(empty)"
