"""Benchmark the overhead of the train loop and of checkpoints.

t5like bench loop
t5like bench loop --gin_file=models/t5/small.gin --gin.BATCH_SIZE=8

The loop's overhead is the time of a step in it, with the log and a hook, minus that of the same compiled step called
directly. The overhead of a checkpoint is the extra time of a stretch of steps with one save in it.
"""

from __future__ import annotations

import argparse

from t5like.cli.options import add_gin_arguments, at_least, gin_search_paths


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--steps", type=at_least(1), default=10, help="train steps in each stretch (default: 10)")
  parser.add_argument("--repeats", type=at_least(1), default=3, help="stretches with and without a save (default: 3)")


def run(args: argparse.Namespace) -> int:
  from t5like.bench.loop import LoopBench, measure_loop

  files = args.gin_file or ["models/t5/tiny.gin"]
  settings = LoopBench(files, args.gin_overrides, gin_search_paths(args), args.steps, args.repeats)
  for overhead in measure_loop(settings):
    print(overhead, flush=True)
  return 0
