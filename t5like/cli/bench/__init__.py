"""Measure how fast things are on this machine, beside a peer or a limit where there is one.

t5like bench data
t5like bench decode --model=t5_1_1/base
t5like bench train --model=t5_1_1/base
t5like bench loop
t5like bench startup
"""

import argparse

from t5like.cli.subcommands import add_subcommands, run_subcommand

SUBCOMMANDS = {
  "train": ("a train step of a model, beside Hugging Face's where it is installed", "cli.bench.train"),
  "decode": ("outputs of a model, beside Hugging Face's and the limit of the memory", "cli.bench.decode"),
  "loop": ("what a run costs besides its steps: the loop, and checkpoints", "cli.bench.loop"),
  "startup": ("from the command of a run to its first step: cold, warm and from a checkpoint", "cli.bench.startup"),
  "data": ("objectives, tokenizing, and batches from a token cache", "cli.bench.data"),
}


def configure(parser: argparse.ArgumentParser) -> None:
  add_subcommands(parser, SUBCOMMANDS, "WHAT")


def run(args: argparse.Namespace) -> int:
  return run_subcommand(args, SUBCOMMANDS)
