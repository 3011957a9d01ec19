"""Ends a run whose score no longer gets better."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from t5like.errors import UserError, nearest


@dataclasses.dataclass
class EarlyStopping:
  """Stops after `patience` evaluations in a row without a score better than the best by more than `min_delta`.

  `metric` is the name of a score, in full as TensorBoard shows it ("eval/snli/accuracy") or its end, as long as that
  can mean one score only ("snli/accuracy", "accuracy").
  """

  metric: str = ""
  patience: int = 5
  higher_is_better: bool = True
  min_delta: float = 0.0

  def __post_init__(self):
    if self.patience < 1:
      raise UserError(
        f"early stopping after {self.patience} evaluations cannot work", expected="a patience of 1 or more"
      )
    if not self.min_delta >= 0:
      raise UserError(f"early stopping with a min_delta of {self.min_delta} cannot work", expected="0 or more")
    self._sign = 1.0 if self.higher_is_better else -1.0
    self._forget()

  def _forget(self) -> None:
    self._name: str | None = None  # of the metric, in full, where only its end was given
    self.best: float | None = None
    self.best_step: int | None = None
    self._last_step = -1  # the last evaluation that had the metric
    self._worse = 0  # evaluations since the best

  @property
  def stopped(self) -> bool:
    return self._worse >= self.patience

  def update(self, step: int, scores: Mapping[str, float | None], whole: bool = True) -> bool:
    """True: stop. An evaluation that was counted before, as after a restart, does not count again.

    `whole` False: other evaluations have more scores, so that the metric need not be among these.
    """
    name = self._find(scores)
    if name is None:
      if whole and self._last_step < 0:
        raise self._unknown(scores)
      return self.stopped
    if step > self._last_step:
      self._last_step = step
      self._count(step, scores[name])
    return self.stopped

  def restore(self, rows: Iterable[Mapping[str, Any]], step: int) -> bool:
    """Remembers the evaluations up to `step` from the rows of metrics.jsonl, and no other; True: stop."""
    self._forget()
    evaluations: dict[int, dict[str, Any]] = {}
    for row in rows:
      if row["kind"] != "train" and row["step"] <= step:
        values = {f"{row['kind']}/{k}": v for k, v in row.items() if k not in ("step", "kind")}
        evaluations.setdefault(row["step"], {}).update(values)
    for number in sorted(evaluations):
      self.update(number, evaluations[number], whole=False)
    return self.stopped

  def describe(self) -> str:
    better = "risen above" if self._sign > 0 else "fallen below"
    best = f"{self.best:.4g} of step {self.best_step:,}" if self.best is not None else "any finite value"
    margin = f" by more than {self.min_delta:g}" if self.min_delta else ""
    return f"{self.metric} has not {better} {best}{margin} in {self._worse} evaluations"

  def _count(self, step: int, value: float | None) -> None:
    # NaN is null in metrics.jsonl; infinities are, too, so none of them is ever better.
    if value is None or not math.isfinite(value):
      self._worse += 1
    elif self.best is None or self._sign * (value - self.best) > self.min_delta:
      self.best, self.best_step, self._worse = float(value), step, 0
    else:
      self._worse += 1

  def _find(self, scores: Mapping[str, Any]) -> str | None:
    """The full name of the metric, if it is among the scores; a second one that it could mean is an error."""
    if self.metric in scores:
      return self.metric
    matching = {name for name in scores if name.endswith(f"/{self.metric}")}
    meant = sorted(matching | ({self._name} if matching and self._name else set()))
    if len(meant) > 1:
      raise UserError(
        f"early stopping on {self.metric!r} can mean several scores", scores=", ".join(meant), try_="one of them"
      )
    self._name = meant[0] if meant else self._name
    return self._name if meant else None

  def _unknown(self, scores: Mapping[str, Any]) -> UserError:
    ends = {end for name in scores for end in (name, name.rpartition("/")[2])}
    return UserError(
      f"early stopping on {self.metric!r}: no evaluation gives such a score",
      nearest=nearest(self.metric, ends),
      scores=", ".join(scores) or "none",
    )
