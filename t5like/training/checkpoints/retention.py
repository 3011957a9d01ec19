"""Checkpoint retention.

Orbax has such policies too, but its best-by-metric one fails on a checkpoint without the metric and ranks NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from t5like.errors import UserError, nearest
from t5like.training.records.metrics import is_higher_better


@dataclasses.dataclass(frozen=True)
class CheckpointRetention:
  """Keeps a checkpoint that is among the `last`, a multiple of `every`, or among the `best`."""

  last: int = 3  # number of newest checkpoints
  every: int = 0  # multiples of this step are kept forever; 0: none
  best: int | None = None  # number of checkpoints with the best `metric`; None: 1 if there is a metric
  metric: str = ""  # such as 'eval/snli/accuracy'
  higher_is_better: bool | None = None  # None: not for a loss or an error

  def __post_init__(self):
    if self.best is None:
      object.__setattr__(self, "best", int(bool(self.metric)))
    if self.last < 1:
      raise UserError(f"invalid number of checkpoints to keep: last={self.last}", expected="at least 1, to resume from")
    if self.every < 0 or self.best < 0:
      raise UserError(f"invalid checkpoint retention: every={self.every}, best={self.best}", expected="0 or more")
    if bool(self.best) != bool(self.metric):
      raise UserError(
        "to keep the best checkpoints, set both best and metric",
        given=f"best={self.best} metric={self.metric!r}",
        try_="best=1 metric='eval/TASK/accuracy'",
      )

  def check_metric(self, known: Iterable[str]) -> None:
    """Raises UserError for a metric that the run does not compute."""
    known = list(known)
    if self.metric and self.metric not in known:
      raise UserError(
        f"unknown metric to keep the best checkpoints by: {self.metric!r}",
        nearest=nearest(self.metric, known),
        known=", ".join(known[:10]),
      )

  def steps_to_keep(self, metrics: Mapping[int, Mapping[str, float]]) -> set[int]:
    """Returns the steps to keep, given the metrics of every checkpoint."""
    steps = sorted(metrics)
    latest = steps[-self.last :]
    multiples = [step for step in steps if self.every and step % self.every == 0]
    return {*latest, *multiples, *self.best_steps(metrics)}

  def best_steps(self, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
    """Returns the best steps, best first and ties by step, without those whose metric is missing or not finite."""
    scores = {step: values[self.metric] for step, values in metrics.items() if self.metric in values}
    finite = [step for step, score in scores.items() if math.isfinite(score)]
    sign = -1 if is_higher_better(self.metric, self.higher_is_better) else 1
    return sorted(finite, key=lambda step: (sign * scores[step], step))[: self.best]
