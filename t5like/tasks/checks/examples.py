"""Checks the rows of a task: features that are missing, empty, too long, unknown to the vocabulary, or duplicated."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.tasks import objective_adapter
from t5like.tasks.caching import text_pipeline
from t5like.tasks.caching.cache_kind import unbound
from t5like.tasks.missing_data import explain_data_errors, reader_error, reason
from t5like.tasks.preprocessors import UNLABELED
from t5like.vocabularies import Vocabulary

TEXT_FEATURES = ("inputs", "targets")
# A larger share of unknown tokens means that the vocabulary does not fit the text.
UNKNOWN_LIMIT = 0.01
_BLOCK = 1000

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Finding:
  """Something to fix (a problem) or to know (a note)."""

  what: str
  example: str = ""
  remedy: str = ""
  problem: bool = True


@dataclasses.dataclass(frozen=True)
class Tokens:
  """Token counts of a feature, including EOS if the feature has it."""

  lengths: np.ndarray  # [rows]
  unknown: np.ndarray  # [rows] number of unknown tokens

  def percentile(self, percent: float) -> int:
    return int(np.percentile(self.lengths, percent, method="higher"))

  def share_longer(self, length: int) -> float:
    return float(np.mean(self.lengths > length))

  @property
  def unknown_share(self) -> float:
    return float(self.unknown.sum() / max(self.lengths.sum(), 1))


def read_rows(task: seqio.Task, split: str, limit: int | None) -> tuple[list[Row], bool]:
  """Returns the first `limit` rows as text and fields, and whether these are the entire split."""
  rows: list[Row] = []
  with explain_data_errors(task):
    try:
      examples = text_pipeline.text_examples(task, split)
      rows.extend(itertools.islice(examples, limit))
      return rows, limit is None or next(examples, None) is None
    except tf.errors.OpError as error:
      raise reader_error(error) or UserError(
        f"a preprocessor of task {task.name!r} failed", after=f"{len(rows):,} rows", because=reason(error)
      ) from None


def text_features(task: seqio.Task) -> list[str]:
  """Returns the features that must be text; for a corpus, an objective creates the inputs."""
  return ["targets"] if is_corpus(task) else [name for name in TEXT_FEATURES if name in task.output_features]


def is_corpus(task: seqio.Task) -> bool:
  """Returns whether a task is plain text, which objectives cut into rows: no document is too long."""
  return "inputs" not in task.output_features or objective_adapter.corrupt in map(unbound, task.preprocessors)


def feature_findings(task: seqio.Task, rows: Sequence[Row]) -> Iterator[Finding]:
  """Yields features that are missing, not text, or empty."""
  if not rows:
    yield Finding("the split has no rows", remedy="check its source and any filtering steps")
    return
  for name in text_features(task):
    missing = [i for i, row in enumerate(rows) if name not in row]
    if missing:
      yield Finding(
        f"{_rows(missing, rows)} no {name!r}",
        f"row {missing[0]} has: {', '.join(rows[missing[0]])}",
        f"a preprocessor that produces {name!r}",
        problem=task.output_features[name].required or len(missing) < len(rows),
      )
    wrong = [i for i, row in enumerate(rows) if name in row and not isinstance(row[name], str)]
    if wrong:
      value = rows[wrong[0]][name]
      yield Finding(
        f"{_rows(wrong, rows)} {name!r} of type {type(value).__name__} (expected text)",
        f"row {wrong[0]}: {value!r}",
        "convert them to text before seqio's tokenize, e.g. with tf.strings.as_string",
      )
    empty = [i for i, row in enumerate(rows) if isinstance(row.get(name), str) and not row[name].strip()]
    if empty:
      others = {field: value for field, value in rows[empty[0]].items() if field != name}
      yield Finding(
        f"{_rows(empty, rows)} empty {name!r}",
        f"row {empty[0]}: {excerpt(str(others))}",
        "filter them out, or fix the step that creates them",
      )


def _rows(numbers: Sequence[int], rows: Sequence[Row]) -> str:
  if len(numbers) == len(rows):
    return "all rows have"
  return f"{len(numbers):,} of {len(rows):,} rows have" if len(numbers) > 1 else f"1 of {len(rows):,} rows has"


def excerpt(text: str, length: int = 100) -> str:
  return text if len(text) <= length else text[:length].rstrip() + " …"


def count_tokens(task: seqio.Task, rows: Sequence[Row], vocabulary: Vocabulary) -> dict[str, Tokens]:
  """Counts the tokens of every text feature."""
  counted = {}
  for name in text_features(task):
    texts = [row[name] for row in rows if isinstance(row.get(name), str)]
    if len(texts) != len(rows) or not rows:
      continue
    lengths, unknown = [], []
    for start in range(0, len(texts), _BLOCK):
      for tokens in vocabulary.encode_batch(texts[start : start + _BLOCK]):
        lengths.append(len(tokens) + task.output_features[name].add_eos)
        unknown.append(tokens.count(vocabulary.unk_id) if vocabulary.unk_id is not None else 0)
    counted[name] = Tokens(np.array(lengths), np.array(unknown))
  return counted


def length_findings(tokens: Mapping[str, Tokens], lengths: Mapping[str, int], rows: Sequence[Row]) -> Iterator[Finding]:
  """Yields features that are truncated; a problem only if every row is."""
  for name, counted in tokens.items():
    if name not in lengths or not (share := counted.share_longer(lengths[name])):
      continue
    longest = int(counted.lengths.argmax())
    subject = f"{name!r} of every row is" if share == 1 else f"{100 * share:.2g}% of {name!r} are"
    yield Finding(
      f"{subject} truncated at {lengths[name]} tokens",
      f"row {longest} has {counted.lengths[longest]:,}: {excerpt(rows[longest][name])}",
      f"--lengths {name}={counted.percentile(99)} fits 99% of them",
      problem=share == 1,
    )


def vocabulary_findings(tokens: Mapping[str, Tokens], rows: Sequence[Row], vocabulary: Vocabulary) -> Iterator[Finding]:
  """Yields features with characters that are missing from the vocabulary."""
  for name, counted in tokens.items():
    withheld = name == "targets" and all(row["targets"] == UNLABELED for row in rows)
    if not counted.unknown.any() or withheld:
      continue
    most = int(counted.unknown.argmax())
    yield Finding(
      f"{100 * counted.unknown_share:.2g}% of the tokens of {name!r} are unknown to the vocabulary",
      f"row {most}: {_unknown_pieces(vocabulary, rows[most][name])}",
      "another vocabulary, or replace these characters",
      problem=counted.unknown_share > UNKNOWN_LIMIT,
    )


def _unknown_pieces(vocabulary: Vocabulary, text: str) -> str:
  ids, offsets = vocabulary.encode_with_offsets(text)
  unknown = [text[start:end] for token, (start, end) in zip(ids, offsets, strict=True) if token == vocabulary.unk_id]
  return excerpt("  ".join(dict.fromkeys(unknown))) or excerpt(text)


def duplicate_findings(rows: Sequence[Row]) -> Iterator[Finding]:
  """Yields duplicate rows, and inputs with different targets."""
  first: dict[tuple, int] = {}
  answers = collections.defaultdict(dict)
  repeated = []
  for number, row in enumerate(rows):
    inputs, targets = (str(row.get(name)) for name in TEXT_FEATURES)
    answers[inputs].setdefault(targets, number)
    if (inputs, targets) in first:
      repeated.append(number)
    else:
      first[inputs, targets] = number
  if repeated:
    row = rows[repeated[0]]
    same = first[str(row.get("inputs")), str(row.get("targets"))]
    text = row.get("inputs", row.get("targets"))
    yield Finding(
      f"{_rows(repeated, rows)} the same text as an earlier one",
      f"rows {same} and {repeated[0]}: {excerpt(str(text))}",
      "remove them, unless the extra weight is intended",
      problem=False,
    )
  several = [found for found in answers.values() if len(found) > 1]
  if several and any("inputs" in row for row in rows[:1]):
    numbers = list(several[0].values())
    targets = " / ".join(excerpt(text, 30) for text in list(several[0])[:3])
    yield Finding(
      f"{len(several):,} input{'s have' if len(several) > 1 else ' has'} more than one target",
      f"rows {', '.join(map(str, numbers[:3]))}: {targets}",
      "inspect them, unless several answers are expected",
      problem=False,
    )
