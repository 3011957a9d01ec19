"""Counts the plateaus of a score, each of which starts the next episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from t5like.finetuning.unfreezing import UnfreezeOnPlateau
from t5like.training.guards.early_stopping import evaluations_by_step


class PlateauCounter:
  """The number of plateaus so far. Each episode compares with its own evaluations only.

  Its state follows from metrics.jsonl, so that a resumed run is in the same episode.
  """

  def __init__(self, settings: UnfreezeOnPlateau):
    self._settings = settings
    self._restart()

  @property
  def metric(self) -> str:
    return self._settings.metric

  def update(self, step: int, scores: Mapping[str, float | None], complete: bool = True) -> None:
    """Counts an evaluation, once even after a restart; arguments as in `EarlyStopping.update`."""
    if step <= self._last_step:
      return
    if self._stopping.update(step, scores, complete):
      self.count, self._stopping = self.count + 1, self._settings.stopping()
      self._last_step = step

  def restore(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
    """Starts over with the evaluations up to `step` in the rows of metrics.jsonl."""
    self._restart()
    for number, scores in evaluations_by_step(rows, step):
      self.update(number, scores, complete=False)

  def _restart(self) -> None:
    self.count, self._stopping, self._last_step = 0, self._settings.stopping(), -1
