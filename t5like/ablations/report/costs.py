"""What each recipe cost: FLOPs of the mathematics, device-hours, and estimates of energy and CO2e."""

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
  """What turns device-hours into energy and emissions. Estimates: nobody metered the runs."""

  watts: float | None = None  # of one device at work, its share of the machine included; None: by its kind
  pue: float = PUE  # energy that the building draws for each unit that reaches a machine
  co2e: float = CO2E  # kg a kWh

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
  """What is known of a kind of device, as JAX names it."""
  spec = device_spec(device)
  return next((chip for chip in CHIPS.values() if spec is not None and chip.spec == spec), None)


def assumptions_text(results: Sequence[Result], assumptions: EnergyAssumptions) -> str:
  devices = sorted({result.cost["total"].device for result in results})
  known = {device: assumptions.watts_of(device) for device in devices}
  unknown = [device or "a device without a name" for device in devices if known[device] is None]
  lines = []
  if len(unknown) < len(devices):
    drawn = ", ".join(f"{watts:.0f} W for {device}" for device, watts in known.items() if watts is not None)
    given = "as given" if assumptions.watts is not None else "of chip and machine at work, from data sheets"
    lines.append(
      f"Energy and CO2e are estimates, not metered: {drawn} ({given}), times {assumptions.pue:g} for cooling and "
      f"losses (PUE), and {assumptions.co2e:g} kg CO2e a kWh{' (US average)' * (assumptions.co2e == CO2E)}."
    )
  if unknown:
    lines.append(f"The power of {', '.join(unknown)} is not known: its energy and CO2e need --device_watts.")
  return " ".join(lines)


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
