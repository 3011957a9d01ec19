"""Measure how fast things are on this machine, beside a peer or a limit where there is one.

t5like bench data
"""

import argparse

from t5like.cli.subcommands import add_subcommands, run_subcommand

SUBCOMMANDS = {
  "data": ("objectives, tokenising, and batches from a token cache", "bench_data"),
}


def configure(parser: argparse.ArgumentParser) -> None:
  add_subcommands(parser, SUBCOMMANDS, "WHAT")


def run(args: argparse.Namespace) -> int:
  return run_subcommand(args, SUBCOMMANDS)
