"""The price tag at the end of a run card: actual cost of all attempts of a run, compared with the plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import flax.linen as nn
import jax

from t5like import planning
from t5like.errors import UserError
from t5like.experiments.compatibility import phase_flops
from t5like.experiments.experiment import Experiment
from t5like.experiments.phases import Phase
from t5like.planning.plan_text import days, numbers_table
from t5like.planning.price import CO2E, PUE, Price, assumptions
from t5like.planning.run_card import large
from t5like.planning.topology import local_chip
from t5like.runs.forecast.planned_work import planned_work
from t5like.runs.run_card import steps_per_phase
from t5like.training.records import goodput

_HEAD = "price tag"


def price_tag(experiment: Experiment, model_dir: Path, phases: Sequence[Phase], model: nn.Module | None = None) -> str:
  """Returns the text at the end of a run card. `model` is that of the train step, if it has more than the run's."""
  model = model or experiment.model
  attempts = goodput.read_attempts(model_dir / goodput.FILE)
  devices, chip = jax.device_count(), local_chip()
  seconds = sum(attempt["seconds"] for attempt in attempts)
  in_steps = sum(attempt["spent"].get(goodput.STEPS, 0.0) for attempt in attempts)
  spans = [(attempt["first_step"], attempt["last_step"]) for attempt in attempts]
  flops = sum(_flops(model, phases, last) - _flops(model, phases, first) for first, last in spans)
  forecast = planned_seconds(experiment, planning.known_local_topology(experiment.mesh.slices))
  actual = planning.price_of(seconds * devices / 3600, chip)
  plan = None if forecast is None else planning.price_of(forecast * devices / 3600, chip)
  rows = [
    (_HEAD, "actual", "planned"),
    ("attempts", str(len(attempts)), "1"),
    ("steps", f"{sum(max(last - first, 0) for first, last in spans):,}", f"{experiment.steps:,}"),
    ("wall time", days(seconds), "-" if forecast is None else days(forecast)),
    ("of it in steps", f"{in_steps / max(seconds, 1e-9):.1%}", "-" if forecast is None else "100.0%"),
    ("model FLOPs", large(flops, "FLOP"), large(_flops(model, phases, experiment.steps), "FLOP")),
    *_price_rows(actual, plan),
  ]
  notes = [f"{devices} x {chip.device_kind}, assumed for all attempts; the plan counts only steps"]
  return "\n".join([*numbers_table(rows), *notes, *assumptions(chip, None, PUE, CO2E)])


def _price_rows(actual: Price, plan: Price | None) -> list[tuple[str, str, str]]:
  fields = {
    "device-hours": ("device_hours", "{:,.3g}"),
    "price": ("dollars", "${:,.2f}"),
    "energy": ("kilowatt_hours", "{:,.3g} kWh"),
    "CO2e": ("kilograms", "{:,.3g} kg"),
  }

  def text(price: Price | None, name: str, form: str) -> str:
    value = None if price is None else getattr(price, name)
    return "-" if value is None else form.format(value)

  return [(label, text(actual, *field), text(plan, *field)) for label, field in fields.items()]


def _flops(model: nn.Module, phases: Sequence[Phase], step: int) -> int:
  """Returns the model FLOPs of the first `step` steps."""
  counts = steps_per_phase(phases, step)
  return sum(n * phase_flops(model, phase.batch_size, phase.lengths) for phase, n in zip(phases, counts, strict=True))


def planned_seconds(experiment: Experiment, topology: planning.Topology | None) -> float | None:
  """Returns the forecast for all steps; None on an unknown machine, or for a model that plans do not cover."""
  if topology is None:
    return None
  try:
    works = planned_work(experiment)
  except UserError:
    return None
  return sum(planning.forecast(work, topology, experiment.mesh, with_memory=False).seconds for work in works)
