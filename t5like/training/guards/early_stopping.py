"""Early stopping."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from t5like.errors import UserError, nearest
from t5like.training.records.metrics import is_higher_better


@dataclasses.dataclass
class EarlyStopping:
  """Stops a run after `patience` consecutive evaluations that do not improve a score by more than `min_delta`.

  Attributes:
    metric: the full name of a score, as in TensorBoard: "eval/snli/accuracy".
    higher_is_better: whether higher scores are better; None: not those of a loss or an error.
  """

  metric: str = ""
  patience: int = 5
  higher_is_better: bool | None = None
  min_delta: float = 0.0

  def __post_init__(self):
    if self.patience < 1:
      raise UserError(f"invalid patience of early stopping: {self.patience}", expected="1 or more")
    if not self.min_delta >= 0:
      raise UserError(f"invalid min_delta of early stopping: {self.min_delta}", expected="0 or more")
    self._sign = 1.0 if is_higher_better(self.metric, self.higher_is_better) else -1.0
    self._reset()

  def _reset(self) -> None:
    self.best: float | None = None
    self.best_step: int | None = None
    self._last_step = -1  # of the last evaluation with the metric
    self._since_best = 0  # evaluations since the best

  @property
  def stopped(self) -> bool:
    return self._since_best >= self.patience

  def update(self, step: int, scores: Mapping[str, float | None], complete: bool = True) -> bool:
    """Counts an evaluation, once even after a restart, and returns whether to stop.

    With `complete=False` the metric need not be among the scores: other evaluations have more of them.
    """
    if self.metric not in scores:
      if complete and self._last_step < 0:
        raise self._unknown(scores)
      return self.stopped
    if step > self._last_step:
      self._last_step = step
      self._count(step, scores[self.metric])
    return self.stopped

  def restore(self, rows: Iterable[Mapping[str, Any]], step: int) -> bool:
    """Starts over with the evaluations up to `step` in the rows of metrics.jsonl; returns whether to stop."""
    self._reset()
    for number, scores in evaluations_by_step(rows, step):
      self.update(number, scores, complete=False)
    return self.stopped

  def describe(self) -> str:
    better = "risen above" if self._sign > 0 else "fallen below"
    best = f"{self.best:.4g} of step {self.best_step:,}" if self.best is not None else "any finite value"
    margin = f" by more than {self.min_delta:g}" if self.min_delta else ""
    return f"{self.metric} has not {better} {best}{margin} in {self._since_best} evaluations"

  def _count(self, step: int, value: float | None) -> None:
    # metrics.jsonl has null for NaN and infinities, so neither is ever an improvement.
    if value is None or not math.isfinite(value):
      self._since_best += 1
    elif self.best is None or self._sign * (value - self.best) > self.min_delta:
      self.best, self.best_step, self._since_best = float(value), step, 0
    else:
      self._since_best += 1

  def _unknown(self, scores: Mapping[str, Any]) -> UserError:
    return UserError(
      f"unknown metric for early stopping: {self.metric!r}",
      nearest=nearest(self.metric, scores),
      scores=", ".join(scores) or "none",
    )


def evaluations_by_step(rows: Iterable[Mapping[str, Any]], step: int) -> list[tuple[int, dict[str, Any]]]:
  """Returns the scores by full name of the evaluations up to `step` in the rows of metrics.jsonl, in order."""
  evaluations: dict[int, dict[str, Any]] = {}
  for row in rows:
    if row["kind"] != "train" and row["step"] <= step:
      values = {f"{row['kind']}/{k}": v for k, v in row.items() if k not in ("step", "kind")}
      evaluations.setdefault(row["step"], {}).update(values)
  return sorted(evaluations.items())
