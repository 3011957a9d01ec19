"""Checks on paired lists of targets and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from t5like.errors import UserError


def check_pairs(targets: Sequence[Any], predictions: Sequence[Any]) -> None:
  """Raises if the lists are empty or differ in length."""
  if len(targets) != len(predictions):
    raise UserError(
      f"got {len(targets)} targets but {len(predictions)} predictions",
      expected="one prediction per target, in the same order",
    )
  if len(targets) == 0:
    raise UserError("nothing to score: no targets and no predictions", try_="another split, or more examples")


def equal(target: Any, prediction: Any) -> bool:
  """Returns whether two values are equal; supports arrays."""
  if isinstance(target, np.ndarray) or isinstance(prediction, np.ndarray):
    return np.array_equal(target, prediction)
  return bool(target == prediction)
