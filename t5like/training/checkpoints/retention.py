"""Which checkpoints stay.

Orbax has such policies too, but its best-by-metric one fails on a checkpoint without that metric and ranks NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from t5like.errors import UserError, nearest


@dataclasses.dataclass(frozen=True)
class Keep:
  """A checkpoint stays if any of the three wants it."""

  last: int = 3  # so many newest
  every: int = 0  # steps that are multiples of it, for ever; 0: none
  best: int = 0  # so many with the best `metric`
  metric: str = ""  # such as 'eval/snli/accuracy'
  higher_is_better: bool = True

  def __post_init__(self):
    if self.last < 1:
      raise UserError(f"the last {self.last} checkpoints cannot be kept", expected="at least 1, to go on from")
    if self.every < 0 or self.best < 0:
      raise UserError(f"checkpoints cannot be kept by every={self.every}, best={self.best}", expected="0 or more")
    if bool(self.best) != bool(self.metric):
      raise UserError(
        "the best checkpoints are kept by a metric, and a metric keeps so many of them",
        given=f"best={self.best} metric={self.metric!r}",
        try_="best=1 metric='eval/TASK/accuracy'",
      )

  def check_metric(self, known: Iterable[str]) -> None:
    """Refuses a metric that the run does not compute."""
    known = list(known)
    if self.metric and self.metric not in known:
      raise UserError(
        f"no metric is called {self.metric!r}, by which to keep the best checkpoints",
        nearest=nearest(self.metric, known),
        known=", ".join(known[:10]),
      )

  def kept(self, metrics: Mapping[int, Mapping[str, float]]) -> set[int]:
    """The steps that stay, given the metrics of every checkpoint there is."""
    steps = sorted(metrics)
    latest = steps[-self.last :]
    multiples = [step for step in steps if self.every and step % self.every == 0]
    return {*latest, *multiples, *self.best_steps(metrics)}

  def best_steps(self, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
    """Best first; of equals the earlier. A checkpoint without the metric, or with NaN, is never among them."""
    scores = {step: values[self.metric] for step, values in metrics.items() if self.metric in values}
    finite = [step for step, score in scores.items() if math.isfinite(score)]
    sign = -1 if self.higher_is_better else 1
    return sorted(finite, key=lambda step: (sign * scores[step], step))[: self.best]
