"""Targets and what is compared with them: two lists that belong together, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from t5like.errors import UserError


def check_pairs(targets: Sequence[Any], predictions: Sequence[Any]) -> None:
  """Raises where there is nothing to score, or where rows got lost."""
  if len(targets) != len(predictions):
    raise UserError(
      f"{len(targets)} targets cannot be scored with {len(predictions)} predictions",
      expected="one prediction for every target, in the same order",
    )
  if len(targets) == 0:
    raise UserError("there is nothing to score: no targets and no predictions", try_="another split, or more examples")


def equal(target: Any, prediction: Any) -> bool:
  """Whether two values are the same, arrays included."""
  if isinstance(target, np.ndarray) or isinstance(prediction, np.ndarray):
    return np.array_equal(target, prediction)
  return bool(target == prediction)
