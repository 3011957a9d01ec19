"""Forecasts memory, network, time and cost of a run on a machine that need not be available."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5like import parallel, planning
from t5like.errors import UserError
from t5like.experiments.compatibility import check_splits
from t5like.experiments.experiment import Experiment, check_experiment
from t5like.planning import Forecast, Price, Topology, Work
from t5like.planning.accuracy import accuracy_of
from t5like.planning.plan_text import as_dict, candidates_table, render_plan, run_range
from t5like.planning.price import CO2E, PUE, assumptions
from t5like.planning.search import (
  candidates,
  fastest_that_fits,
  least_batch_size,
  nearest_that_fits,
  options_text,
  with_batch_size,
  with_slices,
)
from t5like.runs.forecast.planned_work import planned_phases, planned_work
from t5like.training.microbatches import check_microbatches

_SHOWN = 8  # candidates per batch size in a search
_FACTORS = (1, 2, 4)  # multiples of the batch size in a search


@dataclasses.dataclass(frozen=True)
class PlanSettings:
  """Cost of device-hours.

  Attributes:
    price: dollars per device and hour; None: a list price.
    pue: power usage effectiveness of the data center.
    co2e: kg of CO2e per kWh.
  """

  price: float | None = None
  pue: float = PUE
  co2e: float = CO2E

  def __post_init__(self):
    for name, least in (("price", 0), ("pue", 1), ("co2e", 0)):
      value = getattr(self, name)
      if value is not None and not least <= value < float("inf"):
        raise UserError(f"invalid --{name}: {value}", expected=f"{least} or more")


@dataclasses.dataclass(frozen=True)
class RunPlan:
  """A forecast for each phase of a run, and its cost."""

  forecasts: Sequence[Forecast]
  settings: PlanSettings
  nearest: Forecast | None  # if a phase does not fit: the nearest configuration that does

  @property
  def fits(self) -> bool:
    return all(forecast.fits for forecast in self.forecasts)

  @property
  def price(self) -> Price:
    topology = self.forecasts[-1].topology
    hours = sum(f.seconds for f in self.forecasts) * topology.devices / 3600
    return planning.price_of(hours, topology.chip, self.settings.price, self.settings.pue, self.settings.co2e)

  def text(self) -> str:
    """Returns the plan as tables."""
    text = render_plan(self.forecasts, self.price, self._assumed())
    return text if self.fits else "\n".join([text, "", *self._remedy()])

  def as_dict(self) -> dict[str, Any]:
    """Returns plain numbers in bytes, seconds and FLOPs, for programs."""
    seconds, price, ends = sum(f.seconds for f in self.forecasts), vars(self.price), run_range(self.forecasts)
    if ends and price["dollars"] is not None:
      price = {**price, "dollars_range": [price["dollars"] * end / seconds for end in ends]}
    result = {"phases": [as_dict(f) for f in self.forecasts], "price": price, "fits": self.fits}
    result["assumed"] = self._assumed()
    return result | ({"nearest_that_fits": as_dict(self.nearest)} if self.nearest else {})

  def _assumed(self) -> list[str]:
    chip, settings = self.forecasts[-1].topology.chip, self.settings
    accuracy = accuracy_of(chip)
    known = accuracy.describe() if accuracy else "as for other TPUs, calibrated on their published runs"
    time = {
      "gpu": "time: every operation at the share of the device's peak measured on an H200",
      "tpu": f"time: every operation at a share of the device's peak, {known}",
    }.get(chip.platform, "time: every operation at the speed of a matrix product and a copy, measured on this machine")
    lines = assumptions(chip, settings.price, settings.pue, settings.co2e)
    if self.forecasts[-1].work.state.selection is not None:
      lines = [
        "frozen parameters: no gradients, no products for them, no optimizer state; activations as if all trained",
        *lines,
      ]
    return [time, *lines, "(override with --price, --pue and --co2e)"]

  def _remedy(self) -> list[str]:
    too_large, other = _too_large(self.forecasts), self.nearest
    if other is None:
      return [
        f"no number of {too_large.topology.chip.device_kind}s fits this batch: try a smaller BATCH_SIZE or other chips"
      ]
    where = "" if other.topology == too_large.topology else f"--topology={other.topology.name} "
    return [
      "does not fit; nearest that does:",
      f"  {where}{options_text(other, too_large.work)}",
      *(f"  {line}" for line in candidates_table([other])),
    ]


def plan(experiment: Experiment, topology: str | Topology = "local", settings: PlanSettings | None = None) -> RunPlan:
  """Forecasts memory, time and cost of a run on a machine; allocates nothing and needs no accelerator.

  Args:
    experiment: the run.
    topology: the machine: "v5p-512", "4xv5p-128", "h100x8", "2xh100x8" or "local".
    settings: cost of device-hours; list prices by default.

  Returns:
    The plan: `.text()` for people, `.as_dict()` for programs, `.fits`, `.price` and `.forecasts`.

  Raises:
    UserError: the run is invalid on that machine; the error is that of `t5like train`.
  """
  check_experiment(experiment)
  settings, topology = settings or PlanSettings(), _topology(topology)
  axes = with_slices(experiment.mesh, topology)
  _check(experiment, axes, topology)
  forecasts = [planning.forecast(work, topology, axes) for work in planned_work(experiment)]
  too_large = _too_large(forecasts)
  return RunPlan(forecasts, settings, nearest_that_fits(too_large.work, topology) if too_large else None)


@dataclasses.dataclass(frozen=True)
class PlanSearch:
  """The fastest configurations for a run's last phase on a machine, by batch size."""

  work: Work
  topology: Topology
  best: Mapping[int, Sequence[Forecast]]

  @property
  def found(self) -> list[Forecast]:
    return [forecast for forecasts in self.best.values() for forecast in forecasts]

  @property
  def fastest(self) -> Forecast | None:
    return max(self.found, key=lambda f: f.work.tokens / f.time.seconds, default=None)

  def text(self) -> str:
    """Returns a table of candidates, and the options of the fastest."""
    work, topology, fastest = self.work, self.topology, self.fastest
    if fastest is None:
      other = nearest_that_fits(with_batch_size(work, min(self.best)), topology)
      nearest = [f"nearest: --topology={other.topology.name} {options_text(other, work)}"] if other else []
      return "\n".join([f"nothing fits {topology.describe()}", *nearest])
    lines = [f"{topology.describe()}: fastest that fit", "", *candidates_table(self.found)]
    if accuracy := accuracy_of(topology.chip):
      lines += [f"step times: {accuracy.describe()} of {accuracy.least:g} to {accuracy.most:g} times what is shown"]
    lines += ["", f"fastest: {options_text(fastest, work)}"]
    same = self.best.get(work.rows)
    if same and same[0] is not fastest:
      lines.append(f"with the same batch: {options_text(same[0], work)}")
    return "\n".join(lines)

  def as_dict(self) -> dict[str, Any]:
    fastest = self.fastest
    options = options_text(fastest, self.work) if fastest else None
    return {"found": [as_dict(f) for f in self.found], "fastest": options}


def search_plan(
  experiment: Experiment, topology: str | Topology = "local", batch_sizes: Sequence[int] = ()
) -> PlanSearch:
  """Searches meshes, batch sizes, microbatches and rematerialization for the last phase of a run.

  `batch_sizes` defaults to the experiment's, twice and four times that.
  """
  topology, work = _topology(topology), planned_work(experiment)[-1]
  sizes = batch_sizes or [experiment.batch_size * factor for factor in _FACTORS]
  tried = {size: candidates(work, topology, [size]) for size in sizes}
  if not any(tried.values()):
    least = least_batch_size(work, topology)
    raise UserError(
      f"no mesh of {topology.devices:,} devices divides a batch of {' or '.join(f'{size:,}' for size in sizes)} rows",
      expected=f"a multiple of {least}",
      try_=f"--batch_sizes={-(-max(sizes) // least) * least}",
    )
  return PlanSearch(work, topology, {size: fastest_that_fits(found, _SHOWN) for size, found in tried.items()})


def _topology(given: str | Topology) -> Topology:
  if not isinstance(given, str | Topology):
    raise UserError(f"not a machine: {given!r}", expected='a name, such as "v5p-512", "h100x8" or "local"')
  return planning.parse_topology(given) if isinstance(given, str) else given


def _check(experiment: Experiment, axes: parallel.MeshAxes, topology: Topology) -> None:
  """Raises the errors that `t5like train` would raise on that machine."""
  mesh = parallel.abstract_mesh(axes, topology.devices)
  check_splits(experiment.model.config, mesh)
  for phase in planned_phases(experiment):
    parallel.check_batch(phase.batch_size, mesh)
    check_microbatches(phase.batch_size, experiment.microbatches, mesh)


def _too_large(forecasts: Sequence[Forecast]) -> Forecast | None:
  return next((forecast for forecast in forecasts if not forecast.fits), None)
