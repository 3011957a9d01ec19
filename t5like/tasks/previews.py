"""The first examples of a task at every stage: as its source has them, as text, as tokens, after an objective."""

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
from t5like.tasks.missing_data import data_explained
from t5like.tasks.registry import check_split
from t5like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Preview:
  raw: dict[str, Any]  # numpy values and bytes, as read; a line of text under that name
  examples: list[dict[str, Any]]  # what the task makes of it, none, one or several: text, or tokens for encoders


def previews(task: seqio.Task, split: str, count: int, length: int) -> Iterator[Preview]:
  """The first rows of the source, each with the examples that become of it; `length` is that of an encoder's inputs.

  Steps that work on tokens, or on several rows at once, are not looked at here: see `finished`.
  """
  check_split(task, split)
  with data_explained(task):
    rows = task.source.get_dataset(split=split, shuffle=False)
    for number in range(count):
      row = rows.skip(number).take(1)
      for raw in row.as_numpy_iterator():
        raw = raw if isinstance(raw, dict) else {"line": raw}
        of_row = _with_rows(task, row, split)
        if is_encoder_form(task):
          yield Preview(raw, read_tokens(of_row, split, length, None)[0])
        elif Steps.of(task).tokenize is None:
          yield Preview(raw, [])
        else:
          yield Preview(raw, list(text_pipeline.text_examples(of_row, split)))


def finished(
  task: seqio.Task, split: str, vocabulary: Vocabulary, count: int | None, lengths: dict[str, int]
) -> list[dict[str, Any]]:
  """The first examples after all steps of the task, as tokens of a model's vocabulary."""
  made = finished_tokens.for_model(task, vocabulary)
  limit = finished_tokens.size(made, vocabulary)
  with data_explained(task):
    return list(itertools.islice(finished_tokens.token_examples(made, split, lengths, limit), count))


def _with_rows(task: seqio.Task, rows: tf.data.Dataset, split: str) -> seqio.Task:
  """The same task over a data set of a row."""

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
  """What an objective makes of the first rows of a corpus; as in training, but in the order of the documents."""
  special = SpecialTokens.of(vocabulary)
  objective.check(lengths, special)
  tokens: list[int] = []
  documents: list[int] = []
  with data_explained(task):
    for example in itertools.islice(text_pipeline.text_examples(task, split), objective_adapter.DOCUMENTS):
      document = vocabulary.encode(example["targets"])
      if document:
        tokens += document
        documents.append(len(document))
      # One more document than the rows need, for objectives that compare documents.
      if len(tokens) - len(document) >= count * lengths.raw and len(documents) >= 2 * count:
        break
  rows, numbers = objective_adapter.cut(
    np.array(tokens, np.int32), np.array(documents), objective, lengths.raw, special
  )
  return corrupted_rows(objective(rows, Draws.of(seed, 0, numbers), special))[:count]


def readable_fields(fields: Mapping[str, Any], most_characters: int) -> dict[str, str]:
  """Returns the fields of an example as text, those of nested ones as `outer/inner`; long texts and lists are cut."""
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
