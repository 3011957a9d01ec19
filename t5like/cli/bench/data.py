"""Benchmark the data pipeline in rows per second: objectives on one core, from text, and from a token cache.

t5like bench data
t5like bench data --files ~/corpus/*.jsonl.gz --threads=2

If the original `t5` library is installed, its pipeline is measured on the same text in the same run.
"""

from __future__ import annotations

import argparse

from t5like.cli.options import at_least


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--files", nargs="+", default=[], help="JSON lines or text (default: the embedded novels)")
  number = at_least(1)
  parser.add_argument("--threads", type=number, default=2, help="threads that tokenize and build batches (default: 2)")
  parser.add_argument("--megabytes", type=number, default=20, help="megabytes of text (default: 20)")
  parser.add_argument("--rows", type=number, default=100_000, help="rows to read from the cache (default: 100,000)")
  parser.add_argument(
    "--pack", nargs="+", default=[], metavar="TASK", help="measure the packing efficiency of these labeled tasks"
  )
  parser.add_argument("--all", action="store_true", help="measure every objective of the catalogue")


def run(args: argparse.Namespace) -> int:
  from t5like.bench.data import DataBench, measure_data

  settings = DataBench(args.files, args.threads, args.megabytes, args.rows, args.pack, args.all)
  for line in measure_data(settings):
    print(line, flush=True)
  return 0
