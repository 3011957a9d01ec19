"""Metrics of answers that are ranked by a score instead of decoded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5like.errors import UserError
from t5like.tasks.metrics.binary import average_precision, class_f1, roc_auc
from t5like.tasks.metrics.pairing import check_pairs


def auc(
  targets: Sequence[float], predictions: Sequence[float], targets_threshold: float | None = None
) -> dict[str, float]:
  """Computes ROC AUC and PR AUC, from 0 to 1; targets are 0 or 1, or binarized at a threshold."""
  check_pairs(targets, predictions)
  positive = np.asarray(targets) >= (0.5 if targets_threshold is None else targets_threshold)
  scores = np.asarray(predictions, np.float64)
  return {"auc-roc": roc_auc(positive, scores), "auc-pr": average_precision(positive, scores)}


def score_auc(
  targets: Sequence[float], scores: Sequence[float], targets_threshold: float | None = None
) -> dict[str, float]:
  """Like `auc`; the argument name `scores` marks it as a score metric for seqio."""
  return auc(targets, scores, targets_threshold)


def rank_classification(
  targets: Sequence[tuple[Sequence[int], bool, float, int]],
  scores: Sequence[float],
  num_classes: int | None = None,
  normalize_by_target_length: bool = False,
  idx_len: int = 2,
) -> dict[str, float]:
  """Scores the choice of the most likely option for every input.

  targets: from the postprocessor of the same name, one per option: (input number, option number), whether
    it is correct, the input's weight, the option's length in tokens.
  scores: log-likelihoods of the options' texts.
  num_classes: options per input; None if that varies, which yields accuracy only.

  Two classes add F1, ROC AUC and PR AUC of class 1, more classes add their mean F1. If several options
  are correct, any of them counts.
  """
  check_pairs(targets, scores)
  _check_options(targets, idx_len)
  if normalize_by_target_length:
    scores = [score / target[3] for target, score in zip(targets, scores, strict=True)]
  options = sorted(zip(targets, scores, strict=True), key=lambda option: tuple(option[0][0]))
  if num_classes is None:
    return {"accuracy": _accuracy_of_groups(options)}
  if len(options) % num_classes:
    raise UserError(f"{len(options)} options are not a multiple of {num_classes}", try_="num_classes=None")

  right = np.array([target[1] for target, _ in options], bool).reshape(-1, num_classes)
  weights = np.array([target[2] for target, _ in options], np.float64).reshape(-1, num_classes)[:, 0]
  likelihoods = np.array([score for _, score in options], np.float32).reshape(-1, num_classes)
  chosen = likelihoods.argmax(-1)
  chosen_right = right[np.arange(len(right)), chosen]
  result = {"accuracy": 100 * float(np.average(chosen_right, weights=weights))}
  if (right.sum(-1) > 1).any():
    return result
  if num_classes > 2:
    f1 = [class_f1(right[:, c], chosen == c, weights) for c in range(num_classes)]
    return result | {f"mean_{num_classes}class_f1": 100 * float(np.mean(f1))}
  powers = np.exp(likelihoods - likelihoods.max(-1, keepdims=True))
  probability = (powers / powers.sum(-1, keepdims=True))[:, 1]
  return result | {
    "f1": 100 * class_f1(right.argmax(-1) == 1, chosen == 1, weights),
    "auc-roc": 100 * roc_auc(right[:, 1], probability, weights),
    "auc-pr": 100 * average_precision(right[:, 1], probability, weights),
  }


def _check_options(targets: Sequence[Any], idx_len: int) -> None:
  if len(targets[0]) != 4:
    raise UserError(
      f"a target of rank_classification has {len(targets[0])} parts",
      expected="4: index, is_correct, weight, length of the target",
    )
  index = targets[0][0]
  if not hasattr(index, "__len__") or len(index) != idx_len:
    raise UserError(f"the index of an option must have {idx_len} numbers", given=index)


def _accuracy_of_groups(options: Sequence[tuple[Any, float]]) -> float:
  right = total = 0.0
  for _, group in itertools.groupby(options, key=lambda option: option[0][0][0]):
    rows, likelihoods = zip(*group, strict=True)
    chosen = rows[int(np.argmax(likelihoods))]
    right += chosen[1] * chosen[2]
    total += chosen[2]
  return 100 * right / total if total else 0.0
