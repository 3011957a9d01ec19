"""Checks whether a task can be scored: its labels, and its metrics on correct answers and on the majority answer."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import seqio

from t5like.tasks import postprocessors
from t5like.tasks.caching.cache_kind import bound_keywords, unbound
from t5like.tasks.checks.examples import Finding, Row, excerpt
from t5like.tasks.metrics.values import Answers, Metric, compute, tried_rows
from t5like.tasks.preprocessors import UNLABELED
from t5like.tasks.seqio_examples import as_seqio_calls
from t5like.vocabularies import Vocabulary

# Targets count as labels if there are at most this many distinct ones, each frequent on average.
_MOST_LABELS, _LEAST_ROWS_A_LABEL = 20, 5
# Postprocessors of tasks whose targets may be wrong answers.
_TARGETS_MAY_BE_WRONG = (postprocessors.wsc_simple,)


@dataclasses.dataclass(frozen=True)
class Labels:
  """The labels of a classification task."""

  counts: collections.Counter
  known: tuple[str, ...] | None  # the labels that the task declares

  @property
  def never_seen(self) -> list[str]:
    return [label for label in self.known or () if label not in self.counts]


@dataclasses.dataclass(frozen=True)
class Scores:
  """The task's metrics on answers that need no model."""

  targets: dict[str, float]  # of the targets themselves
  through_vocabulary: dict[str, float]  # of the targets encoded and decoded: the best possible score
  majority: dict[str, float]  # of always predicting the most common target
  majority_answer: str
  rows: int  # number of rows scored


def unlabeled(rows: Sequence[Row]) -> list[int]:
  return [number for number, row in enumerate(rows) if row.get("targets") == UNLABELED]


def find_labels(task: seqio.Task, rows: Sequence[Row]) -> Labels | None:
  """Returns the labels of a classification task; None if targets are free text."""
  counts = collections.Counter(row["targets"] for row in rows if row["targets"] != UNLABELED)
  known = _declared_labels(task.postprocessor)
  few = len(counts) <= min(_MOST_LABELS, len(rows) / _LEAST_ROWS_A_LABEL)
  return Labels(counts, known) if counts and (known or (few and task.metric_fns)) else None


def _declared_labels(postprocessor: Callable | None) -> tuple[str, ...] | None:
  if unbound(postprocessor) is postprocessors.multirc:
    return postprocessors.MULTIRC_LABELS
  keywords = bound_keywords(postprocessor)
  return tuple(keywords["label_classes"]) if "label_classes" in keywords else None


def label_findings(labels: Labels | None, rows: Sequence[Row], is_complete: bool) -> Iterator[Finding]:
  without = unlabeled(rows)
  if without and len(without) < len(rows):
    yield Finding(
      f"{len(without):,} of {len(rows):,} rows have no label",
      f"row {without[0]}: {excerpt(str(rows[without[0]].get('inputs')))}",
      "filter them out",
    )
  if len(without) == len(rows):
    yield Finding("the labels of this split are withheld: it cannot be scored", problem=False)
  elif labels and labels.known:
    for word in sorted(labels.counts.keys() - set(labels.known)):
      row = next(number for number, row in enumerate(rows) if row["targets"] == word)
      yield Finding(
        f"{labels.counts[word]:,} rows have the target {word!r}, which is not a label",
        f"row {row}: {excerpt(str(rows[row].get('inputs')))}",
        f"one of: {', '.join(labels.known)}",
      )
    for label in labels.never_seen:
      yield Finding(
        f"the label {label!r} never occurs" + ("" if is_complete else f" in the first {len(rows):,} rows"),
        remedy="check the label's spelling, the order of label_classes, or the data",
        problem=is_complete,
      )


def score(task: seqio.Task, rows: Sequence[Row], vocabulary: Vocabulary) -> tuple[Scores | None, list[Finding]]:
  """Runs postprocessor and metrics on correct answers and on the most common one."""
  rows = rows[: tried_rows(map(_name, task.predict_metric_fns), len(rows))]
  if not task.predict_metric_fns or not rows or len(unlabeled(rows)) == len(rows):
    return None, []
  texts = [row["targets"] for row in rows]
  decoded = [vocabulary.decode(tokens) for tokens in vocabulary.encode_batch(texts)]
  most_common = collections.Counter(texts).most_common(1)[0][0]
  try:
    targets = _postprocessed(task, rows, texts, is_target=True)
    correct, through, majority = (
      _postprocessed(task, rows, answers, is_target=False) for answers in (texts, decoded, [most_common] * len(rows))
    )
    scored = (_scores(task, targets, answers) for answers in (correct, through, majority))
    scores = Scores(*scored, most_common, len(rows))
  except _Failed as failed:
    return None, [failed.finding]
  findings = list(_imperfect(task, scores, targets))
  findings += _changed_by_vocabulary(rows, texts, decoded, correct, through, scores)
  return scores, findings


class _Failed(Exception):
  def __init__(self, what: str, error: str, example: str):
    self.finding = Finding(f"{what} failed: {error}", example, "fix it")


def _postprocessed(task: seqio.Task, rows: Sequence[Row], texts: Sequence[str], is_target: bool) -> list[Any]:
  values, postprocess = [], as_seqio_calls(task.postprocessor) if task.postprocessor else task.postprocess_fn
  for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
    # As in evaluation: text features have another name.
    example = {f"{name}_pretokenized" if name in task.output_features else name: value for name, value in row.items()}
    try:
      values.append(postprocess(text, example=example, is_target=is_target))
    except Exception as error:  # whatever the user's function raises
      raised = f"{type(error).__name__}: {error}"
      raise _Failed(
        f"the postprocessor {_name(task.postprocessor)}", raised, f"row {number}: {excerpt(text)}"
      ) from error
  return values


def _scores(task: seqio.Task, targets: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
  metrics_of_task = [Metric(_name(function), function) for function in task.predict_metric_fns]
  values = compute(metrics_of_task, Answers(targets, answers))
  for name, error in values.failures.items():
    raise _Failed(f"the metric {name}", error, f"target {excerpt(repr(targets[0]))}")
  return values.numbers


def _name(function: Callable) -> str:
  return getattr(unbound(function), "__name__", repr(function))


def _imperfect(task: seqio.Task, scores: Scores, targets: Sequence[Any]) -> Iterator[Finding]:
  """Yields a finding if correct answers do not get the best score; constants and missing classes are exempt."""
  if len({repr(target) for target in targets}) < 2:
    return
  missing_class = (
    {name for name in scores.targets if name.endswith("class_f1")} if _classes_missing(task, targets) else {}
  )
  low = {
    name: value
    for name, value in scores.targets.items()
    if name not in missing_class and (best := _best(task, name)) is not None and abs(value - best) > 1e-6
  }
  if low:
    expected = unbound(task.postprocessor) in _TARGETS_MAY_BE_WRONG
    yield Finding(
      "the targets themselves score only " + ", ".join(f"{name} {value:.2f}" for name, value in low.items()),
      remedy="this is the share of correct targets: in this task a label marks them"
      if expected
      else "make postprocessor and metric consistent with the targets that the preprocessor writes",
      problem=not expected,
    )


def _classes_missing(task: seqio.Task, targets: Sequence[Any]) -> bool:
  known = _declared_labels(task.postprocessor)
  return known is not None and len({repr(target) for target in targets}) < len(known)


def _best(task: seqio.Task, name: str) -> float | None:
  """Returns the best value of a t5like metric; None for counts, thresholds and other metrics."""
  if not all(unbound(metric).__module__.startswith("t5like.tasks.") for metric in task.predict_metric_fns):
    return None
  if name.endswith(("total", "_thresh")):
    return None
  return 0.0 if name.endswith("_edit") else 1.0 if name.startswith("auc-") else 100.0


def _changed_by_vocabulary(
  rows: Sequence[Row],
  texts: Sequence[str],
  decoded: Sequence[str],
  correct: Sequence[Any],
  through: Sequence[Any],
  scores: Scores,
) -> Iterator[Finding]:
  """Yields a finding if the vocabulary cannot express some targets; a problem if that lowers the score."""
  changed = [n for n, pair in enumerate(zip(correct, through, strict=True)) if repr(pair[0]) != repr(pair[1])]
  if not changed:
    return
  first = changed[0]
  lost = {
    name: value - scores.through_vocabulary[name]
    for name, value in scores.targets.items()
    if abs(value - scores.through_vocabulary.get(name, value)) > 1e-9
  }
  cost = ", which costs " + ", ".join(f"{name} {value:.2f}" for name, value in lost.items()) if lost else ""
  yield Finding(
    f"{len(changed):,} of {len(rows):,} targets cannot be expressed in the vocabulary{cost}",
    f"row {first}: {excerpt(texts[first], 60)!r} decodes to {excerpt(decoded[first], 60)!r}",
    "other label words, or a vocabulary with these characters",
    problem=any(abs(value) > 1 for value in lost.values()),
  )
