"""Benchmark the time from the start of a run to its first step, by category.

t5like bench startup
t5like bench startup --gin_file=models/t5_1_1/base.gin --gin.BATCH_SIZE=64

`t5like train` runs three times, each for a few steps: cold (tokens and programs are built); in another directory with
tokens and compiled programs cached; and in that directory again, from its checkpoint. The times are those that each run
recorded in goodput.jsonl.
"""

from __future__ import annotations

import argparse

from t5like.cli.options import add_gin_arguments


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)


def run(args: argparse.Namespace) -> int:
  from t5like.bench.startup import StartupBench, import_seconds, measure_startup, table

  print(f"imports of a training process       {import_seconds():8.1f} s", flush=True)
  files = args.gin_file or ["models/t5/tiny.gin"]
  for name, spent in measure_startup(StartupBench(files, args.gin_overrides, args.gin_search_paths)):
    print(f"\n{name}\n{table(spent)}", flush=True)
  return 0
