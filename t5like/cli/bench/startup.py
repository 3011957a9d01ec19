"""How long a run takes from its command to its first steps, and with what.

t5like bench startup
t5like bench startup --gin_file=models/t5_1_1/base.gin --gin.BATCH_SIZE=64

`t5like train` is started three times, each for a few steps: with nothing prepared (tokens and programs are made anew);
in another directory with tokens and compiled programs there; and in that directory again, from its checkpoint. Where
the time went is what each run wrote itself into goodput.jsonl.
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
