"""Scores of predictions against targets, in percent. Plain Python: no TensorFlow, no registry.

Every metric is `fn(targets, predictions) -> {name: score}` under the name that the t5 library gives
it, and agrees with that library and with scikit-learn. Two rules hold where those fail or give NaN:
what is undefined (the correlation of a constant, the F1 of a class that nobody named) scores 0, and
lists that are empty or of different lengths are refused.

A factory such as `mean_multiclass_f1(3)` returns a `functools.partial` of a function of this module,
so that a token cache can name it.
"""

from __future__ import annotations

import collections
import functools
import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from t5like.tasks.metrics.binary import class_f1
from t5like.tasks.metrics.pairing import check_pairs, equal
from t5like.tasks.metrics.qa import coqa_f1, span_squad, squad, squad2, trivia_qa
from t5like.tasks.metrics.ranking import auc, rank_classification, score_auc
from t5like.tasks.metrics.tagging import entity_f1, token_accuracy
from t5like.tasks.metrics.text import bleu, edit_distance, rouge

__all__ = [
  "accuracy", "all_match", "auc", "bleu", "coqa_f1", "deduplicate_metric", "edit_distance", "entity_f1", "exact_match",
  "f1_score_with_invalid", "matthews_corrcoef", "mean_group_metric", "mean_multiclass_f1",
  "multirc_f1_over_all_answers", "pearson_corrcoef", "rank_classification", "rouge", "score_auc", "sequence_accuracy",
  "span_squad", "spearman_corrcoef", "squad", "squad2", "token_accuracy", "trivia_qa",
]  # fmt: skip

Metric = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]]

# Token caches and files of predictions name scoring functions by module; those of before 2026-11 by these.
MOVED_MODULES = {
  f"t5like.tasks.{old}": f"t5like.tasks.{new}"
  for old, new in (
    ("qa_metrics", "metrics.qa"), ("text_metrics", "metrics.text"), ("tagging_metrics", "metrics.tagging"),
    ("ranking_metrics", "metrics.ranking"), ("encoder_scores", "encoders.scores"), ("ner_text", "library.ner_text"),
  )
}  # fmt: skip


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Share of predictions that equal their target: class ids, words, or sequences of them."""
  return {"accuracy": _share_equal(targets, predictions)}


def sequence_accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Share of predicted sequences that equal their target in every place."""
  return {"sequence_accuracy": _share_equal(targets, predictions)}


def _share_equal(targets: Sequence[Any], predictions: Sequence[Any]) -> float:
  check_pairs(targets, predictions)
  return 100 * sum(map(equal, targets, predictions)) / len(targets)


def all_match(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """100 where every prediction equals its target, otherwise 0: the score of a group."""
  check_pairs(targets, predictions)
  return {"exact_match": 100.0 * all(map(equal, targets, predictions))}


exact_match = all_match  # its name in earlier releases of the t5 library


def matthews_corrcoef(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Matthews' correlation for any number of classes (Gorodkin 2004); an invalid answer is a class of its own."""
  check_pairs(targets, predictions)
  count = len(targets)
  of_target, of_prediction = collections.Counter(_plain(targets)), collections.Counter(_plain(predictions))
  right = sum(map(equal, targets, predictions))
  # Integers: a product of four counts of a large set would not fit into a float.
  covariance = right * count - sum(n * of_prediction[c] for c, n in of_target.items())
  spread = (count**2 - sum(n * n for n in of_target.values())) * (count**2 - sum(n * n for n in of_prediction.values()))
  return {"matthews_corrcoef": 100 * covariance / spread**0.5 if spread else 0.0}


def f1_score_with_invalid(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
  """F1 of class 1; a prediction that is neither 0 nor 1 counts as the wrong one of the two."""
  check_pairs(targets, predictions)
  target, prediction = np.asarray(targets), np.asarray(predictions)
  prediction = np.where(np.isin(prediction, (0, 1)), prediction, 1 - target)
  return {"f1": 100 * class_f1(target == 1, prediction == 1)}


def mean_multiclass_f1(num_classes: int) -> Metric:
  """The mean over classes 0 .. num_classes - 1 of their F1 (CommitmentBank has three)."""
  return functools.partial(multiclass_f1, num_classes=num_classes)


def multiclass_f1(targets: Sequence[int], predictions: Sequence[int], *, num_classes: int) -> dict[str, float]:
  """What `mean_multiclass_f1` binds. A class that is neither a target nor predicted has F1 0, and counts."""
  check_pairs(targets, predictions)
  target, prediction = np.asarray(targets), np.asarray(predictions)
  scores = [class_f1(target == c, prediction == c) for c in range(num_classes)]
  return {f"mean_{num_classes}class_f1": 100 * sum(scores) / num_classes}


def pearson_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
  """Linear correlation; 0 where a side is constant or not finite."""
  return {"pearson_corrcoef": _correlation("pearsonr", targets, predictions)}


def spearman_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
  """Correlation of the ranks; 0 where a side is constant or holds NaN."""
  return {"spearman_corrcoef": _correlation("spearmanr", targets, predictions)}


def _correlation(kind: str, targets: Sequence[float], predictions: Sequence[float]) -> float:
  from scipy import stats  # takes a second to import, which most tasks need not pay

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
  """MultiRC's F1a: every answer option on its own, whatever question it belongs to."""
  return f1_score_with_invalid([t["value"] for t in targets], [p["value"] for p in predictions])


def mean_group_metric(
  metric_fn: Metric, group_key: str = "group", value_key: str = "value", return_subgroup_scores: bool = False
) -> Metric:
  """A metric that scores each group of rows and takes the mean: MultiRC's exact match over the options of a question.

  The groups stand in the targets. Half of a group scores differently: evaluate whole splits.
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
  """What `mean_group_metric` binds; `metric_fn` may be a name, `module:function`."""
  check_pairs(targets, predictions)
  groups: dict[Hashable, tuple[list, list]] = {}
  for target, prediction in zip(targets, predictions, strict=True):
    of_target, of_prediction = groups.setdefault(_hashable(target[group_key]), ([], []))
    of_target.append(target[value_key])
    of_prediction.append(prediction[value_key])
  metric = _find(metric_fn)
  scores = {group: metric(*values) for group, values in groups.items()}
  names = next(iter(scores.values()))
  means = {name: float(np.mean([score[name] for score in scores.values()])) for name in names}
  if return_subgroup_scores:
    means |= {f"{group}-{name}": value for group, score in scores.items() for name, value in score.items()}
  return means


def deduplicate_metric(metric_fn: Metric, group_key: str = "group", value_key: str = "value") -> Metric:
  """A metric that looks at the first row of every group only: ReCoRD trains on one row an answer."""
  return functools.partial(first_of_group, metric_fn=_by_name(metric_fn), group_key=group_key, value_key=value_key)


def first_of_group(
  targets: Sequence[Mapping[str, Any]],
  predictions: Sequence[Mapping[str, Any]],
  *,
  metric_fn: str | Metric,
  group_key: str = "group",
  value_key: str = "value",
) -> dict[str, float]:
  """What `deduplicate_metric` binds; `metric_fn` may be a name, `module:function`."""
  check_pairs(targets, predictions)
  firsts: dict[Hashable, tuple[Any, Any]] = {}
  for target, prediction in zip(targets, predictions, strict=True):
    firsts.setdefault(_hashable(target[group_key]), (target[value_key], prediction[value_key]))
  return dict(_find(metric_fn)(*map(list, zip(*firsts.values(), strict=True))))


def _by_name(metric: Metric) -> str | Metric:
  """A function at the top of a module as its name, which JSON can hold; any other as it is."""
  name = f"{getattr(metric, '__module__', '')}:{getattr(metric, '__qualname__', '<none>')}"
  return name if "<" not in name else metric


def _find(metric: str | Metric) -> Metric:
  if not isinstance(metric, str):
    return metric
  module, name = metric.split(":")
  module = MOVED_MODULES.get(module, module)
  return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def _hashable(value: Any) -> Hashable:
  """Groups come as numpy values from seqio and as lists from a token cache."""
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _plain(values: Sequence[Any]) -> list[Hashable]:
  return [_hashable(value) for value in values]
