"""Checks a task in an encoder form, whose examples are tokens and class numbers."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio

from t5like.tasks.caching.cache_kind import unbound
from t5like.tasks.checks.examples import Finding, Tokens, length_findings, vocabulary_findings
from t5like.tasks.checks.scoring import Labels
from t5like.tasks.encoders.forms import encoder_vocabulary
from t5like.tasks.missing_data import explain_data_errors
from t5like.vocabularies import Vocabulary

# Long enough to measure text lengths; windowed tasks are read with the run's length instead.
_UNCUT = 4096
WITHHELD = -1


def is_encoder_form(task: seqio.Task) -> bool:
  """Returns whether a step of the task creates the tokens, with the vocabulary of its features."""
  return any(getattr(step, "makes_tokens", False) for step in map(unbound, task.preprocessors))


def read_tokens(
  task: seqio.Task, split: str, length: int, limit: int | None
) -> tuple[list[dict[str, np.ndarray]], bool]:
  """Returns the first `limit` examples as numpy values, and whether these are the entire split."""
  with explain_data_errors(task):
    dataset = task.get_dataset({"inputs": length}, split, shuffle=False, num_epochs=1, try_in_mem_cache=False)
    examples = dataset.as_numpy_iterator()
    rows = list(itertools.islice(examples, limit))
    return rows, limit is None or next(examples, None) is None


def check_tokens(
  task: seqio.Task, split: str, lengths: Mapping[str, int], limit: int | None
) -> tuple[int, bool, dict[str, Tokens], Labels | None, list[Finding]]:
  """Returns the number of rows read, whether these are all, token counts, labels, and findings."""
  vocabulary = encoder_vocabulary(task.output_features)
  in_windows = "labels" in task.output_features and task.output_features["labels"].rank == 1
  rows, is_complete = read_tokens(task, split, lengths["inputs"] if in_windows else _UNCUT, limit)
  if not rows:
    empty = Finding("the split has no rows", remedy="check its source and any filtering steps")
    return 0, is_complete, {}, None, [empty]
  tokens = {"inputs": _counted(rows, vocabulary)}
  texts = [{"inputs": _as_written(row, vocabulary)} for row in rows]
  findings = [*length_findings(tokens, lengths, texts), *vocabulary_findings(tokens, texts, vocabulary)]
  labels = _labels(task, rows)
  findings += _label_findings(task, labels, rows, is_complete)
  findings += _nothing_to_predict(rows)
  return len(rows), is_complete, tokens, labels, findings


def _counted(rows: Sequence[Mapping[str, np.ndarray]], vocabulary: Vocabulary) -> Tokens:
  lengths = np.array([len(row["inputs"]) for row in rows])
  return Tokens(lengths, np.array([np.count_nonzero(row["inputs"] == vocabulary.unk_id) for row in rows]))


def _as_written(row: Mapping[str, Any], vocabulary: Vocabulary) -> str:
  """Returns the original texts of a row if it has them; decoded tokens lack unknown characters."""
  given = row.get("tokens", [row[name] for name in ("first", "second") if name in row])
  if len(given):
    return " ".join(text.decode("utf-8", errors="replace") for text in given)
  return vocabulary.decode(row["inputs"])


def _labels(task: seqio.Task, rows: Sequence[Mapping[str, np.ndarray]]) -> Labels | None:
  """Returns the counts of class numbers; None for regression and spans."""
  if "weights" in rows[0]:  # tagging: only the first token of a word counts
    values = np.concatenate([row["targets"][row["weights"] > 0] for row in rows])
    classes = task.output_features["targets"].vocabulary.vocab_size
  elif "labels" in rows[0] and rows[0]["labels"].ndim == 0 and np.issubdtype(rows[0]["labels"].dtype, np.integer):
    values = np.array([row["labels"] for row in rows])
    classes = task.output_features["labels"].vocabulary.vocab_size
  else:
    return None
  counts = collections.Counter(str(value) for value in values.tolist())
  return Labels(counts, tuple(map(str, range(classes))))


def _label_findings(
  task: seqio.Task, labels: Labels | None, rows: Sequence[Mapping[str, np.ndarray]], is_complete: bool
) -> Iterator[Finding]:
  if labels is None:
    return
  if set(labels.counts) == {str(WITHHELD)}:
    yield Finding("the labels of this split are withheld: it cannot be scored", problem=False)
    return
  for number in sorted(set(labels.counts) - set(labels.known)):
    yield Finding(
      f"{labels.counts[number]:,} labels are {number}, which is not a class",
      f"classes are 0 to {len(labels.known) - 1}",
      "filter them out, or fix the step that creates them",
    )
  for number in labels.never_seen:
    yield Finding(
      f"class {number} never occurs" + ("" if is_complete else f" in the first {len(rows):,} rows"),
      remedy="check the order of the labels, or the data",
      problem=is_complete and "weights" not in rows[0],  # an entity type may be rare
    )


def _nothing_to_predict(rows: Sequence[Mapping[str, np.ndarray]]) -> Iterator[Finding]:
  empty = [number for number, row in enumerate(rows) if "weights" in row and not row["weights"].any()]
  if empty:
    yield Finding(
      f"{len(empty):,} of {len(rows):,} rows have no token to predict",
      f"row {empty[0]}: all its weights are 0",
      "filter them out",
    )
