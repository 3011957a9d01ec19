"""The error of forecasts of TPU steps, measured on published runs; tests recompute these constants."""

from __future__ import annotations

from typing import NamedTuple

from t5like.planning.topology import Chip


class Accuracy(NamedTuple):
  """The cross-validated error of step times: constants are fitted to runs of other models or chips.

  runs             number of published runs
  median, largest  error relative to the published time
  least, most      nine of ten published times are between these multiples of their forecast
  best             the highest published MFU, which limits every range
  """

  runs: int
  median: float
  largest: float
  least: float
  most: float
  best: float

  def step_range(self, seconds: float, peak_share: float) -> tuple[float, float]:
    """Returns the shortest and the longest time to expect for a forecast."""
    shortest = seconds * max(self.least, min(peak_share / self.best, 1.0))
    return shortest, seconds * self.most

  def describe(self) -> str:
    return (
      f"calibrated on {self.runs} published runs of decoders from 7B to 1024B: median error {self.median:.0%}, "
      f"largest {self.largest:.0%}; nine of ten are within the range"
    )


TPU = Accuracy(runs=55, median=0.04, largest=0.30, least=0.87, most=1.15, best=0.73)
CALIBRATED = ("v4", "v5e", "v5p", "v6e")


def accuracy_of(chip: Chip) -> Accuracy | None:
  """Returns the accuracy of forecasts; None for chips without published runs: other TPUs, GPUs and CPUs."""
  return TPU if chip.name in CALIBRATED else None
