"""What each recipe cost: FLOPs of the mathematics, device-hours, and estimates of energy and CO2e."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from t5like.ablations.results import Cost, Result


@dataclasses.dataclass(frozen=True)
class EnergyAssumptions:
  """What turns device-hours into energy and emissions. Estimates: nobody metered the runs."""

  watts: float | None = None  # that one device draws at work, its share of the host included; None: not known
  overhead: float = 1.2  # of the building: energy drawn for each unit that reaches the machines (PUE)
  grams_per_kilowatt_hour: float = 480.0  # CO2e of the electricity

  def kilowatt_hours(self, cost: Cost) -> float | None:
    return None if self.watts is None else cost.device_seconds / 3600 * self.watts / 1000 * self.overhead

  def kilograms(self, cost: Cost) -> float | None:
    energy = self.kilowatt_hours(cost)
    return None if energy is None else energy * self.grams_per_kilowatt_hour / 1000


@dataclasses.dataclass(frozen=True)
class RecipeCost:
  """All runs of a recipe together."""

  recipe: str
  runs: int
  parts: dict[str, Cost]  # "pretraining", "finetuning", "total"
  kilowatt_hours: float | None
  kilograms: float | None  # of CO2e

  @property
  def total(self) -> Cost:
    return self.parts["total"]

  def hours(self, part: str) -> float | None:
    return self.parts[part].device_seconds / 3600 if part in self.parts else None


def recipe_costs(results: Sequence[Result], assumptions: EnergyAssumptions) -> list[RecipeCost]:
  """A recipe that stands in several tables is counted once: it was run once."""
  by_recipe: dict[str, list[Result]] = {}
  for result in results:
    by_recipe.setdefault(result.recipe, []).append(result)
  return [_summed(recipe, runs, assumptions) for recipe, runs in by_recipe.items()]


def total_cost(results: Sequence[Result], assumptions: EnergyAssumptions) -> RecipeCost:
  return _summed("All runs", results, assumptions)


def _summed(recipe: str, runs: Sequence[Result], assumptions: EnergyAssumptions) -> RecipeCost:
  parts = {}
  for part in ("pretraining", "finetuning", "total"):
    costs = [run.cost[part] for run in runs if part in run.cost]
    if costs:
      parts[part] = sum(costs[1:], costs[0])
  # Devices may differ between runs: energy is summed run by run.
  return RecipeCost(
    recipe,
    len(runs),
    parts,
    _sum([assumptions.kilowatt_hours(run.cost["total"]) for run in runs]),
    _sum([assumptions.kilograms(run.cost["total"]) for run in runs]),
  )


def _sum(values: Sequence[float | None]) -> float | None:
  return None if None in values else math.fsum(values)
