"""What a run would take, before it runs: memory, network, time, money. Nothing is allocated, no accelerator needed.

  t5like plan --gin_file=models/t5_1_1/xxl.gin --gin_file=objectives/span_corruption.gin \\
      --gin_file=runs/pretrain.gin --gin.BATCH_SIZE=2048 --gin_file=meshes/fsdp.gin --topology=v5p-512
  t5like plan ... --topology=h100x8 --search

The configuration is that of `t5like train`, with the same options; MODEL_DIR is not needed. Machines:

  v5p-512      a TPU slice: v4 and v5p by TensorCores (two a chip), v5e and v6e by chips
  4xv5p-128    four slices, with the data centre's network between them
  h100x8       a machine of eight GPUs (a100, h100, h200, b200; h200 alone is one)
  2xh100x8     two such machines, with InfiniBand between them
  local        this machine

--search tries meshes, batch sizes, parts and rematerialisation, and shows the fastest that fit.

On TPUs step times, prices and shares of the peak come with a range, from the error on published runs.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from t5like.cli.options import add_gin_arguments, gin_search_paths
from t5like.errors import UserError

if TYPE_CHECKING:  # help must not wait for jax
  from t5like import parallel
  from t5like.experiments.experiment import Experiment
  from t5like.planning import Forecast, Topology

_SHOWN = 8
_FACTORS = (1, 2, 4)  # of the batch size, in a search


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--topology", default="local", help="the machine, as above (default: local)")
  parser.add_argument("--search", action="store_true", help="find the fastest way that fits")
  parser.add_argument(
    "--batch_sizes",
    metavar="N,N,...",
    help="that a search tries (default: the configuration's, twice and four times it)",
  )
  parser.add_argument("--price", type=float, metavar="DOLLARS", help="of a device for an hour (default: a list price)")
  parser.add_argument("--pue", type=float, help="power of the data centre for each watt of its machines (default: 1.1)")
  parser.add_argument("--co2e", type=float, metavar="KG", help="of a kWh where the machine is (default: 0.373, the US)")
  parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
  from t5like import planning
  from t5like.planning.plan_text import render_plan
  from t5like.planning.search import nearest_that_fits, with_slices
  from t5like.runs.planned_work import planned_work

  for name, least in (("price", 0), ("pue", 1), ("co2e", 0)):
    value = getattr(args, name)
    if value is not None and not least <= value < float("inf"):
      raise UserError(f"--{name}={value} cannot work", expected=f"{least} or more")
  topology = planning.parse_topology(args.topology)
  experiment = _experiment(args)
  if args.search:
    return _search(args, experiment, topology)
  axes = with_slices(experiment.mesh, topology)
  _check(experiment, axes, topology)
  forecasts = [planning.forecast(work, topology, axes) for work in planned_work(experiment)]
  too_large = next((f for f in forecasts if not f.fits), None)
  other = nearest_that_fits(too_large.work, topology) if too_large else None
  if args.json:
    print(json.dumps(_json(args, forecasts, other)))
    return 0
  print(render_plan(forecasts, _price(args, forecasts), _assumptions(args, forecasts)))
  if too_large:
    print("\n".join(["", *_remedy(too_large, other)]))
  return 0


def _experiment(args: argparse.Namespace) -> Experiment:
  from t5like.experiments.reading import read_experiment

  planned = [] if "MODEL_DIR" in dict(args.gin_overrides) else [("MODEL_DIR", "planned")]
  return read_experiment(args.gin_file, [*planned, *args.gin_overrides], gin_search_paths(args))


def _check(experiment: Experiment, axes: parallel.MeshAxes, topology: Topology) -> None:
  """What `t5like train` would refuse on that machine."""
  from t5like import parallel
  from t5like.experiments.compatibility import check_splits
  from t5like.runs.planned_work import planned_phases
  from t5like.training.step import check_microbatches

  mesh = parallel.abstract_mesh(axes, topology.devices)
  check_splits(experiment.model.config, mesh)
  for phase in planned_phases(experiment):
    parallel.check_batch(phase.batch_size, mesh)
    check_microbatches(phase.batch_size, experiment.microbatches, mesh)


def _price(args: argparse.Namespace, forecasts: list[Forecast]) -> Any:
  from t5like.planning.price import CO2E, PUE, price_of

  last = forecasts[-1]
  hours = sum(f.seconds for f in forecasts) * last.topology.devices / 3600
  return price_of(hours, last.topology.chip, args.price, args.pue or PUE, CO2E if args.co2e is None else args.co2e)


def _assumptions(args: argparse.Namespace, forecasts: list[Forecast]) -> list[str]:
  from t5like.planning.accuracy import accuracy_of
  from t5like.planning.price import CO2E, PUE, assumptions

  chip = forecasts[-1].topology.chip
  accuracy = accuracy_of(chip)
  known = accuracy.describe() if accuracy else "as of other TPUs, whose published runs it was calibrated on"
  time = {
    "gpu": "time: every operation at the share of the device's peak that was measured on an H200",
    "tpu": f"time: every operation at a share of the device's peak, {known}",
  }.get(chip.platform, "time: every operation at the speed of a product and a copy, measured here and now")
  lines = assumptions(chip, args.price, args.pue or PUE, CO2E if args.co2e is None else args.co2e)
  return [time, *lines, "(--price, --pue and --co2e take yours)"]


def _remedy(too_large: Forecast, other: Forecast | None) -> list[str]:
  from t5like.planning.plan_text import candidates_table
  from t5like.planning.search import options_text

  if other is None:
    return [f"no {too_large.topology.chip.device_kind}s hold this batch: try a smaller BATCH_SIZE or other chips"]
  where = "" if other.topology == too_large.topology else f"--topology={other.topology.name} "
  return [
    "does not fit; the nearest that does:",
    f"  {where}{options_text(other, too_large.work)}",
    *(f"  {line}" for line in candidates_table([other])),
  ]


def _search(args: argparse.Namespace, experiment: Experiment, topology: Topology) -> int:
  from t5like.planning.accuracy import accuracy_of
  from t5like.planning.plan_text import as_dict, candidates_table
  from t5like.planning.search import candidates, fastest_that_fits, nearest_that_fits, options_text
  from t5like.runs.planned_work import planned_work

  sizes = _batch_sizes(args.batch_sizes) if args.batch_sizes else [experiment.batch_size * n for n in _FACTORS]
  work = planned_work(experiment)[-1]
  best = {size: fastest_that_fits(candidates(work, topology, [size]), _SHOWN) for size in sizes}
  found = [forecast for forecasts in best.values() for forecast in forecasts]
  if not found and not args.json:
    other = nearest_that_fits(work, topology)
    nearest = [f"nearest: --topology={other.topology.name} {options_text(other, work)}"] if other else []
    print("\n".join([f"nothing fits {topology.describe()}", *nearest]))
    return 0
  fastest = max(found, key=lambda f: f.work.tokens / f.time.seconds, default=None)
  if args.json:
    options = options_text(fastest, work) if fastest else None
    print(json.dumps({"found": [as_dict(f) for f in found], "fastest": options}))
    return 0
  print(f"{topology.describe()}: the fastest that fit\n")
  print("\n".join(candidates_table(found)))
  accuracy = accuracy_of(topology.chip)
  if accuracy:
    print(f"step times: {accuracy.describe()} of {accuracy.least:g} to {accuracy.most:g} times what is shown")
  print(f"\nfastest: {options_text(fastest, work)}")
  same = best.get(work.rows)
  if same and same[0] is not fastest:
    print(f"with the same batch: {options_text(same[0], work)}")
  return 0


def _batch_sizes(text: str) -> list[int]:
  try:
    sizes = [int(size) for size in text.split(",")]
  except ValueError:
    sizes = [0]
  if min(sizes) < 1:
    raise UserError(f"--batch_sizes={text} cannot work", expected="whole numbers, such as 128,256,512")
  return sizes


def _json(args: argparse.Namespace, forecasts: list[Forecast], other: Forecast | None) -> dict[str, Any]:
  from t5like.planning.plan_text import as_dict, run_range

  seconds = sum(f.seconds for f in forecasts)
  price, ends = vars(_price(args, forecasts)), run_range(forecasts)
  if ends and price["dollars"] is not None:
    price = {**price, "dollars_range": [price["dollars"] * end / seconds for end in ends]}
  result = {"phases": [as_dict(f) for f in forecasts], "price": price}
  result |= {"fits": all(f.fits for f in forecasts), "assumed": _assumptions(args, forecasts)}
  return result | ({"nearest_that_fits": as_dict(other)} if other else {})
