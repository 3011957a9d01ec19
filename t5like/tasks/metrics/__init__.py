"""Metrics of predictions against targets, in percent. Plain Python: no TensorFlow, no registry.

Every metric is `fn(targets, predictions) -> {name: score}`, has the name it has in the t5 library, and
agrees with that library and with scikit-learn. Two rules apply where those fail or return NaN: undefined
values (the correlation of a constant, the F1 of a class that never occurs) are 0, and empty lists or
lists of different lengths raise UserError.

A factory such as `mean_multiclass_f1(3)` returns a `functools.partial` of a module-level function, so
that a token cache can refer to it by name.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from t5like.configuration.modules import import_user_module
from t5like.tasks.metrics.binary import class_f1
from t5like.tasks.metrics.pairing import check_pairs, equal
from t5like.tasks.metrics.qa import coqa_f1, span_squad, squad, squad2, trivia_qa
from t5like.tasks.metrics.ranking import auc, rank_classification, score_auc
from t5like.tasks.metrics.retrieval import retrieval
from t5like.tasks.metrics.tagging import entity_f1, token_accuracy
from t5like.tasks.metrics.text import bleu, edit_distance, rouge

__all__ = [
  "accuracy", "all_match", "auc", "bleu", "coqa_f1", "deduplicate_metric", "edit_distance", "entity_f1", "exact_match",
  "f1_score_with_invalid", "matthews_corrcoef", "mean_group_metric", "mean_multiclass_f1", "mean_squared_error",
  "multirc_f1_over_all_answers", "pearson_corrcoef", "rank_classification", "retrieval", "rouge", "score_auc",
  "sequence_accuracy", "span_squad", "spearman_corrcoef", "squad", "squad2", "token_accuracy", "trivia_qa",
]  # fmt: skip

Metric = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]]

# Token caches and prediction files name scoring functions by module; those written before 2026-11 use these.
MOVED_MODULES = {
  f"t5like.tasks.{old}": f"t5like.tasks.{new}"
  for old, new in (
    ("qa_metrics", "metrics.qa"), ("text_metrics", "metrics.text"), ("tagging_metrics", "metrics.tagging"),
    ("ranking_metrics", "metrics.ranking"), ("encoder_scores", "encoders.scores"), ("ner_text", "library.ner_text"),
  )
}  # fmt: skip


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Computes the share of predictions that equal their target: class ids, words, or sequences of them."""
  return {"accuracy": _share_equal(targets, predictions)}


def sequence_accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Computes the share of predicted sequences that equal their target in every position."""
  return {"sequence_accuracy": _share_equal(targets, predictions)}


def _share_equal(targets: Sequence[Any], predictions: Sequence[Any]) -> float:
  check_pairs(targets, predictions)
  return 100 * sum(map(equal, targets, predictions)) / len(targets)


def all_match(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Returns 100 if every prediction equals its target, otherwise 0; for groups."""
  check_pairs(targets, predictions)
  return {"exact_match": 100.0 * all(map(equal, targets, predictions))}


exact_match = all_match  # its name in earlier releases of the t5 library


def matthews_corrcoef(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Computes Matthews' correlation for any number of classes (Gorodkin 2004); an invalid answer is another class."""
  check_pairs(targets, predictions)
  count = len(targets)
  expected, predicted = collections.Counter(_plain(targets)), collections.Counter(_plain(predictions))
  correct = sum(map(equal, targets, predictions))
  # Integers: a product of four large counts would lose precision in a float.
  covariance = correct * count - sum(n * predicted[c] for c, n in expected.items())
  spread = (count**2 - sum(n * n for n in expected.values())) * (count**2 - sum(n * n for n in predicted.values()))
  return {"matthews_corrcoef": 100 * covariance / spread**0.5 if spread else 0.0}


def f1_score_with_invalid(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
  """Computes F1 of class 1; a prediction other than 0 or 1 counts as the wrong class."""
  check_pairs(targets, predictions)
  target, prediction = np.asarray(targets), np.asarray(predictions)
  prediction = np.where(np.isin(prediction, (0, 1)), prediction, 1 - target)
  return {"f1": 100 * class_f1(target == 1, prediction == 1)}


def mean_multiclass_f1(num_classes: int) -> Metric:
  """Returns a metric: the mean F1 over classes 0 .. num_classes - 1 (CommitmentBank has three)."""
  return functools.partial(multiclass_f1, num_classes=num_classes)


def multiclass_f1(targets: Sequence[int], predictions: Sequence[int], *, num_classes: int) -> dict[str, float]:
  """Implements `mean_multiclass_f1`. A class that is neither a target nor predicted counts with F1 0."""
  check_pairs(targets, predictions)
  target, prediction = np.asarray(targets), np.asarray(predictions)
  scores = [class_f1(target == c, prediction == c) for c in range(num_classes)]
  return {f"mean_{num_classes}class_f1": 100 * sum(scores) / num_classes}


def pearson_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
  """Computes the linear correlation; 0 if a side is constant or not finite."""
  return {"pearson_corrcoef": _correlation("pearsonr", targets, predictions)}


def spearman_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
  """Computes the rank correlation; 0 if a side is constant or contains NaN."""
  return {"spearman_corrcoef": _correlation("spearmanr", targets, predictions)}


def mean_squared_error(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
  """Computes the mean of squared differences."""
  check_pairs(targets, predictions)
  difference = np.asarray(targets, np.float64) - np.asarray(predictions, np.float64)
  return {"mean_squared_error": float(np.mean(difference**2))}


def _correlation(kind: str, targets: Sequence[float], predictions: Sequence[float]) -> float:
  from scipy import stats  # takes a second to import, and most tasks do not need it

  check_pairs(targets, predictions)
  pairs = np.asarray(targets, np.float64), np.asarray(predictions, np.float64)
  if any(np.isnan(side).any() or (side == side[0]).all() for side in pairs):
    return 0.0
  with np.errstate(invalid="ignore"):  # an infinite answer
    value = float(getattr(stats, kind)(*pairs)[0])
  return 100 * value if np.isfinite(value) else 0.0


def multirc_f1_over_all_answers(
  targets: Sequence[Mapping[str, Any]], predictions: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
  """Computes MultiRC's F1a: over all answer options, regardless of their questions."""
  return f1_score_with_invalid([t["value"] for t in targets], [p["value"] for p in predictions])


def mean_group_metric(
  metric_fn: Metric, group_key: str = "group", value_key: str = "value", return_subgroup_scores: bool = False
) -> Metric:
  """Returns a metric that averages `metric_fn` over groups of rows, such as MultiRC's exact match per question.

  Targets carry the groups. Incomplete groups score differently: evaluate complete splits.
  """
  return functools.partial(
    grouped_mean,
    metric_fn=_by_name(metric_fn),
    group_key=group_key,
    value_key=value_key,
    return_subgroup_scores=return_subgroup_scores,
  )


def grouped_mean(
  targets: Sequence[Mapping[str, Any]],
  predictions: Sequence[Mapping[str, Any]],
  *,
  metric_fn: str | Metric,
  group_key: str = "group",
  value_key: str = "value",
  return_subgroup_scores: bool = False,
) -> dict[str, float]:
  """Implements `mean_group_metric`; `metric_fn` may be a name, `module:function`."""
  check_pairs(targets, predictions)
  groups: dict[Hashable, tuple[list, list]] = {}
  for target, prediction in zip(targets, predictions, strict=True):
    group_targets, group_predictions = groups.setdefault(_hashable(target[group_key]), ([], []))
    group_targets.append(target[value_key])
    group_predictions.append(prediction[value_key])
  metric = _find(metric_fn)
  scores = {group: metric(*values) for group, values in groups.items()}
  names = next(iter(scores.values()))
  means = {name: float(np.mean([score[name] for score in scores.values()])) for name in names}
  if return_subgroup_scores:
    means |= {f"{group}-{name}": value for group, score in scores.items() for name, value in score.items()}
  return means


def deduplicate_metric(metric_fn: Metric, group_key: str = "group", value_key: str = "value") -> Metric:
  """Returns a metric of the first row of every group only: ReCoRD has one row per answer."""
  return functools.partial(first_of_group, metric_fn=_by_name(metric_fn), group_key=group_key, value_key=value_key)


def first_of_group(
  targets: Sequence[Mapping[str, Any]],
  predictions: Sequence[Mapping[str, Any]],
  *,
  metric_fn: str | Metric,
  group_key: str = "group",
  value_key: str = "value",
) -> dict[str, float]:
  """Implements `deduplicate_metric`; `metric_fn` may be a name, `module:function`."""
  check_pairs(targets, predictions)
  firsts: dict[Hashable, tuple[Any, Any]] = {}
  for target, prediction in zip(targets, predictions, strict=True):
    firsts.setdefault(_hashable(target[group_key]), (target[value_key], prediction[value_key]))
  return dict(_find(metric_fn)(*map(list, zip(*firsts.values(), strict=True))))


def _by_name(metric: Metric) -> str | Metric:
  """Returns the name of a module-level function, for JSON; any other function unchanged."""
  name = f"{getattr(metric, '__module__', '')}:{getattr(metric, '__qualname__', '<none>')}"
  return name if "<" not in name else metric


def _find(metric: str | Metric) -> Metric:
  if not isinstance(metric, str):
    return metric
  module, name = metric.split(":")
  module = MOVED_MODULES.get(module, module)
  return functools.reduce(getattr, name.split("."), import_user_module(module))


def _hashable(value: Any) -> Hashable:
  """Makes a group hashable: groups are numpy values from seqio and lists from a token cache."""
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _plain(values: Sequence[Any]) -> list[Hashable]:
  return [_hashable(value) for value in values]
