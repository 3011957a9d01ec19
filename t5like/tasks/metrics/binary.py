"""Binary classification metrics with weights, as scikit-learn defines them: F1, ROC AUC, average precision."""

from __future__ import annotations

import numpy as np


def class_f1(target: np.ndarray, prediction: np.ndarray, weights: np.ndarray | None = None) -> float:
  """Computes the harmonic mean of precision and recall from boolean targets and predictions."""
  weights = np.ones(len(target)) if weights is None else weights
  chosen = weights @ target + weights @ prediction
  return float(2 * (weights @ (target & prediction)) / chosen) if chosen else 0.0


def roc_auc(target: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
  """Computes the probability that a positive scores above a negative, ties counting half; 0 if one is missing."""
  found, false = _found_by_threshold(target, scores, weights)
  if not found[-1] or not false[-1]:
    return 0.0
  areas = np.diff(false, prepend=0) * (found + np.concatenate([[0], found[:-1]])) / 2
  return float(areas.sum() / (found[-1] * false[-1]))


def average_precision(target: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
  """Computes the area under the stepwise precision-recall curve; 0 if there is no positive."""
  found, false = _found_by_threshold(target, scores, weights)
  if not found[-1]:
    return 0.0
  reached = found + false > 0  # the first rows may have weight 0
  found, false = found[reached], false[reached]
  return float((np.diff(found, prepend=0) * found / (found + false)).sum() / found[-1])


def _found_by_threshold(
  target: np.ndarray, scores: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the weight of true and of false positives at every distinct score, in descending order."""
  weights = np.ones(len(target)) if weights is None else weights
  order = np.argsort(-scores, kind="stable")
  last_of_score = np.append(np.diff(scores[order]) != 0, True)
  positive, weight = target[order].astype(bool), weights[order]
  return np.cumsum(weight * positive)[last_of_score], np.cumsum(weight * ~positive)[last_of_score]
