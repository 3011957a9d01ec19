"""Checks the results of a train step that replaces ours, when it is traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t5like.errors import UserError
from t5like.training.detection import COUNTS
from t5like.training.optimizers.rules import leaves_by_path
from t5like.training.state import TrainState
from t5like.training.step import StepFunction

_ARRAYS = ("norms", COUNTS)  # metrics of more than one number


def checked_step(step: StepFunction, shapes: TrainState) -> StepFunction:
  """Returns the same step; tracing it raises UserError if it does not return a state of `shapes` and metrics."""
  name = getattr(step, "__name__", "train step")

  def run(*arguments: Any) -> tuple[TrainState, Mapping[str, Any]]:
    result = step(*arguments)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
      raise UserError(f"{name} must return (state, metrics)", found=type(result).__name__)
    state, metrics = result
    _check_metrics(name, metrics)
    _check_state(name, state, shapes)
    return result

  return run


def _check_metrics(name: str, metrics: Mapping[str, Any]) -> None:
  if "loss" not in metrics:
    raise UserError(f"the metrics of {name} lack 'loss'", found=", ".join(map(str, metrics)) or "none")
  for key, value in metrics.items():
    if key not in _ARRAYS and (
      not isinstance(value, jax.Array | np.ndarray | np.generic | int | float) or np.ndim(value)
    ):
      raise UserError(f"the metric {key!r} of {name} must be a number", found=_describe(value))


def _check_state(name: str, state: Any, shapes: TrainState) -> None:
  given, found = ({path: _describe(x) for path, x in leaves_by_path(tree).items()} for tree in (shapes, state))
  for path in [*given, *found]:
    if given.get(path) != found.get(path):
      raise UserError(
        f"{name} must return a state like the one it receives",
        field=path, expected=given.get(path, "no such field"), found=found.get(path, "no such field"),
      )  # fmt: skip


def _describe(value: Any) -> str:
  if hasattr(value, "shape") and hasattr(value, "dtype"):
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"
  return type(value).__name__
