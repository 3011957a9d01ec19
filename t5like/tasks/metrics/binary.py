"""How well one class is found: F1 and the areas under two curves, with weights, as scikit-learn defines them."""

from __future__ import annotations

import numpy as np


def class_f1(target: np.ndarray, prediction: np.ndarray, weights: np.ndarray | None = None) -> float:
  """Harmonic mean of precision and recall, from where the class is and where it was predicted (booleans)."""
  weights = np.ones(len(target)) if weights is None else weights
  chosen = weights @ target + weights @ prediction
  return float(2 * (weights @ (target & prediction)) / chosen) if chosen else 0.0


def roc_auc(target: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
  """Probability that a positive scores above a negative, ties counting half; 0 where there are not both."""
  found, false = _found_by_threshold(target, scores, weights)
  if not found[-1] or not false[-1]:
    return 0.0
  areas = np.diff(false, prepend=0) * (found + np.concatenate([[0], found[:-1]])) / 2
  return float(areas.sum() / (found[-1] * false[-1]))


def average_precision(target: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
  """Area under precision over recall, in steps; 0 where there is no positive."""
  found, false = _found_by_threshold(target, scores, weights)
  if not found[-1]:
    return 0.0
  reached = found + false > 0  # rows of weight 0 may come first
  found, false = found[reached], false[reached]
  return float((np.diff(found, prepend=0) * found / (found + false)).sum() / found[-1])


def _found_by_threshold(
  target: np.ndarray, scores: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
  """Weight of the true and of the false positives at every distinct score, from the highest down."""
  weights = np.ones(len(target)) if weights is None else weights
  order = np.argsort(-scores, kind="stable")
  last_of_score = np.append(np.diff(scores[order]) != 0, True)
  positive, weight = target[order].astype(bool), weights[order]
  return np.cumsum(weight * positive)[last_of_score], np.cumsum(weight * ~positive)[last_of_score]
