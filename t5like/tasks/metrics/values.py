"""Runs a task's metric functions and reads what they return: numbers, seqio's metric values, or groups of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

PREDICTIONS, SCORES, AUX_VALUES = "predictions", "scores", "aux_values"
# Metrics are tried on all true answers, as groups must be whole; these, which take seconds for 2,000, on fewer.
_SLOW, _SLOW_ROWS = ("rouge", "edit_distance"), 2_000


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric function; `takes` says what it compares targets with.

  predictions: fn(targets, predictions)
  scores: fn(targets, scores), the log-likelihood of each target
  aux_values: fn(targets, predictions, aux_values), whose "scores" are the log-likelihoods of the predictions
  """

  name: str
  function: Callable
  takes: str = PREDICTIONS


@dataclasses.dataclass(frozen=True)
class Answers:
  """What the metrics look at, one entry an example; likelihoods may be missing where no metric takes them."""

  targets: Sequence[Any]
  predictions: Sequence[Any]
  target_scores: Sequence[float] | None = None
  prediction_scores: Sequence[float] | None = None


@dataclasses.dataclass
class Values:
  """Numbers by name, other values (texts, kinds of media) as text, and the metrics that failed."""

  numbers: dict[str, float] = dataclasses.field(default_factory=dict)
  others: dict[str, str] = dataclasses.field(default_factory=dict)
  failures: dict[str, str] = dataclasses.field(default_factory=dict)


def tried_rows(names: Iterable[str], rows: int) -> int:
  """On how many of `rows` true answers metrics of these names are tried."""
  return min(rows, _SLOW_ROWS) if set(names) & set(_SLOW) else rows


def compute(metrics: Sequence[Metric], answers: Answers) -> Values:
  """All metrics; one that raises is noted, and the others are computed all the same."""
  values = Values()
  for metric in metrics:
    try:
      for name, value in _flat(_called(metric, answers)):
        number = as_number(value)
        if number is None:
          values.others[name] = _text(value)
        else:
          values.numbers[name] = number
    except Exception as error:  # whatever a user's function raises
      values.failures[metric.name] = f"{type(error).__name__}: {error}"
  return values


def _called(metric: Metric, answers: Answers) -> Mapping[str, Any]:
  if metric.takes == SCORES:
    result = metric.function(answers.targets, answers.target_scores)
  elif metric.takes == AUX_VALUES:
    result = metric.function(answers.targets, answers.predictions, {"scores": answers.prediction_scores})
  else:
    result = metric.function(answers.targets, answers.predictions)
  if not isinstance(result, Mapping):
    raise TypeError(f"it returned a {type(result).__name__}, not a dict of names and values")
  return result


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
  for name, value in values.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f"{before}{name}/")
    else:
      yield f"{before}{name}", value


def as_number(value: Any) -> float | None:
  """None for what is no number, such as seqio's Text and Audio."""
  if type(value).__name__ == "Scalar" and hasattr(value, "value"):  # seqio.metrics.Scalar
    value = value.value
  if isinstance(value, str | bytes):
    return None
  try:
    array = np.asarray(value)
    is_number = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    return float(array.reshape(())) if array.size == 1 and is_number else None
  except (TypeError, ValueError):
    return None


def _text(value: Any) -> str:
  written = getattr(value, "textdata", value)  # seqio.metrics.Text
  if isinstance(written, bytes):
    written = written.decode("utf-8", errors="replace")
  return written if isinstance(written, str) else f"<{type(value).__name__}>"
