"""Forecast memory, communication, time and cost of a run. Nothing is allocated and no accelerator is needed.

  t5like plan --gin_file=models/t5_1_1/xxl.gin --gin_file=objectives/span_corruption.gin \\
      --gin_file=runs/pretrain.gin --gin.BATCH_SIZE=2048 --gin_file=meshes/fsdp.gin --topology=v5p-512
  t5like plan ... --topology=h100x8 --search

The configuration and its options are those of `t5like train`; MODEL_DIR is not needed. Machines:

  v5p-512      a TPU slice: v4 and v5p by TensorCores (two per chip), v5e and v6e by chips
  4xv5p-128    four slices, with the data center's network between them
  h100x8       a machine of eight GPUs (a100, h100, h200, b200; h200 alone is one)
  2xh100x8     two such machines, with InfiniBand between them
  local        this machine

--search tries meshes, batch sizes, microbatches and rematerialization, and prints the fastest that fit.

On TPUs step times, prices and MFU come with a range, from the error on published runs.
"""

from __future__ import annotations

import argparse
import json

from t5like.cli.options import add_gin_arguments, gin_search_paths
from t5like.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--topology", default="local", help="machine, as above (default: local)")
  parser.add_argument("--search", action="store_true", help="find the fastest configuration that fits")
  parser.add_argument(
    "--batch_sizes",
    metavar="N,N,...",
    help="batch sizes of a search (default: the configured one, twice and four times it)",
  )
  parser.add_argument("--price", type=float, metavar="DOLLARS", help="per device-hour (default: a list price)")
  parser.add_argument("--pue", type=float, help="power usage effectiveness of the data center (default: 1.1)")
  parser.add_argument("--co2e", type=float, metavar="KG", help="CO2e per kWh (default: 0.373, the US average)")
  parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(args: argparse.Namespace) -> int:
  from t5like import planning
  from t5like.experiments.reading import read_experiment
  from t5like.planning.price import CO2E, PUE
  from t5like.runs.forecast.forecasting import PlanSettings, plan, search_plan

  if args.batch_sizes and not args.search:
    raise UserError("--batch_sizes is an option of --search", try_="--search, or --gin.BATCH_SIZE=N")
  ignored = [f"--{name}" for name in ("price", "pue", "co2e") if getattr(args, name) is not None]
  if args.search and ignored:
    raise UserError(f"{', '.join(ignored)}: --search compares times, not costs", try_="the plan of one configuration")
  pue, co2e = (default if given is None else given for given, default in ((args.pue, PUE), (args.co2e, CO2E)))
  settings = PlanSettings(args.price, pue, co2e)
  topology = planning.parse_topology(args.topology)
  needed = args.gin_file and "MODEL_DIR" not in dict(args.gin_overrides)
  planned = [("MODEL_DIR", "planned")] if needed else []
  experiment = read_experiment(args.gin_file, [*planned, *args.gin_overrides], gin_search_paths(args))
  if args.search:
    found = search_plan(experiment, topology, _batch_sizes(args.batch_sizes))
  else:
    found = plan(experiment, topology, settings)
  print(json.dumps(found.as_dict()) if args.json else found.text())
  return 0


def _batch_sizes(text: str | None) -> list[int]:
  if not text:
    return []
  try:
    sizes = [int(size) for size in text.split(",")]
  except ValueError:
    sizes = [0]
  if min(sizes) < 1:
    raise UserError(f"invalid --batch_sizes: {text}", expected="positive integers, such as 128,256,512")
  return sizes
