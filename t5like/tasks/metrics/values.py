"""Runs a task's metric functions and collects their results: numbers, seqio metric values, or nested dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

PREDICTIONS, SCORES, AUX_VALUES = "predictions", "scores", "aux_values"
# Metrics are tried on all targets, as groups must be complete; these take seconds per 2,000 rows and get fewer.
_SLOW, _SLOW_ROWS = ("rouge", "edit_distance"), 2_000


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric function; `takes` is what it compares targets with.

  predictions: fn(targets, predictions)
  scores: fn(targets, scores), the log-likelihood of each target
  aux_values: fn(targets, predictions, aux_values), whose "scores" are the log-likelihoods of the predictions
  """

  name: str
  function: Callable
  takes: str = PREDICTIONS


@dataclasses.dataclass(frozen=True)
class Answers:
  """The inputs of metrics, one entry per example; scores may be None if no metric takes them."""

  targets: Sequence[Any]
  predictions: Sequence[Any]
  target_scores: Sequence[float] | None = None
  prediction_scores: Sequence[float] | None = None


@dataclasses.dataclass
class Values:
  """Numbers by name, other values (text, media) as text, and the errors of failed metrics."""

  numbers: dict[str, float] = dataclasses.field(default_factory=dict)
  others: dict[str, str] = dataclasses.field(default_factory=dict)
  failures: dict[str, str] = dataclasses.field(default_factory=dict)


def tried_rows(names: Iterable[str], rows: int) -> int:
  """Returns how many of `rows` targets the metrics with these names are tried on."""
  return min(rows, _SLOW_ROWS) if set(names) & set(_SLOW) else rows


def compute(metrics: Sequence[Metric], answers: Answers) -> Values:
  """Computes all metrics; a metric that raises is recorded as a failure."""
  values = Values()
  for metric in metrics:
    try:
      for name, value in _flat(call_metric(metric, answers)):
        if name in values.numbers or name in values.others:
          raise ValueError(f"another metric of the task returns {name!r}, too")
        number = as_number(value)
        if number is None:
          values.others[name] = _text(value)
        else:
          values.numbers[name] = number
    except Exception as error:  # whatever a user's function raises
      values.failures[metric.name] = f"{type(error).__name__}: {error}"
  return values


def call_metric(metric: Metric, answers: Answers) -> Mapping[str, Any]:
  if metric.takes == SCORES:
    result = metric.function(answers.targets, np.asarray(answers.target_scores))
  elif metric.takes == AUX_VALUES:
    result = metric.function(answers.targets, answers.predictions, {"scores": np.asarray(answers.prediction_scores)})
  else:
    result = metric.function(answers.targets, answers.predictions)
  if not isinstance(result, Mapping):
    raise TypeError(f"expected a dict of names and values, got a {type(result).__name__}")
  return result


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
  for name, value in values.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f"{before}{name}/")
    else:
      yield f"{before}{name}", value


def as_number(value: Any) -> float | None:
  """Returns the value as a float; None if it is not a number, such as seqio's Text and Audio."""
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
  text = getattr(value, "textdata", value)  # seqio.metrics.Text
  if isinstance(text, bytes):
    text = text.decode("utf-8", errors="replace")
  return text if isinstance(text, str) else f"<{type(value).__name__}>"
