"""The cost of each recipe: model FLOPs, device-hours, and estimates of energy and CO2e."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from t5like.ablations.sweep.results import Cost, Result
from t5like.planning.devices import device_spec
from t5like.planning.price import CO2E, PUE, device_watts
from t5like.planning.topology import CHIPS, Chip


@dataclasses.dataclass(frozen=True)
class EnergyAssumptions:
  """Factors that convert device-hours to energy and emissions. Estimates: the runs were not metered."""

  watts: float | None = None  # of one busy device, including its share of the host; None: by device kind
  pue: float = PUE  # power usage effectiveness of the data center
  co2e: float = CO2E  # kg per kWh

  def watts_of(self, device: str) -> float | None:
    chip = _chip(device)
    return self.watts if self.watts is not None else device_watts(chip) if chip and chip.watts else None

  def kilowatt_hours(self, cost: Cost) -> float | None:
    watts = self.watts_of(cost.device)
    return None if watts is None else cost.device_seconds / 3600 * watts / 1000 * self.pue

  def kilograms(self, cost: Cost) -> float | None:
    energy = self.kilowatt_hours(cost)
    return None if energy is None else energy * self.co2e


def _chip(device: str) -> Chip | None:
  """Returns the chip with JAX's device kind `device`, if it is known."""
  spec = device_spec(device)
  return next((chip for chip in CHIPS.values() if spec is not None and chip.spec == spec), None)


def assumptions_text(results: Sequence[Result], assumptions: EnergyAssumptions) -> str:
  devices = sorted({result.cost["total"].device for result in results})
  known = {device: assumptions.watts_of(device) for device in devices}
  unknown = [device or "an unnamed device" for device in devices if known[device] is None]
  lines = []
  if len(unknown) < len(devices):
    drawn = ", ".join(f"{watts:.0f} W for {device}" for device, watts in known.items() if watts is not None)
    given = "as given" if assumptions.watts is not None else "busy chip and host, from data sheets"
    lines.append(
      f"Energy and CO2e are estimates, not metered: {drawn} ({given}), times {assumptions.pue:g} for cooling and "
      f"losses (PUE), and {assumptions.co2e:g} kg CO2e per kWh{' (US average)' * (assumptions.co2e == CO2E)}."
    )
  if unknown:
    lines.append(f"The power of {', '.join(unknown)} is unknown: use --device_watts to estimate energy and CO2e.")
  return " ".join(lines)


@dataclasses.dataclass(frozen=True)
class RecipeCost:
  """The total cost of all runs of a recipe."""

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
  """Returns the cost of each recipe; one in several tables is counted once, as it was run once."""
  by_recipe: dict[str, list[Result]] = {}
  for result in results:
    by_recipe.setdefault(result.recipe, []).append(result)
  return [_sum_costs(recipe, runs, assumptions) for recipe, runs in by_recipe.items()]


def total_cost(results: Sequence[Result], assumptions: EnergyAssumptions) -> RecipeCost:
  return _sum_costs("All runs", results, assumptions)


def _sum_costs(recipe: str, runs: Sequence[Result], assumptions: EnergyAssumptions) -> RecipeCost:
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
