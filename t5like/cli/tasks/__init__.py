"""Look at the registered seqio tasks, check them, and prepare their data where nothing can be downloaded.

t5like tasks list
t5like tasks show snli --n=3
"""

import argparse

from t5like.cli.subcommands import add_subcommands, run_subcommand
from t5like.tasks.quiet_start import load_seqio

SUBCOMMANDS = {
  "list": ("name every task and mixture that is registered", "cli.tasks.list"),
  "show": ("print examples as they are, as text and as tokens, or a mixture's shares", "cli.tasks.show"),
  "check": ("look for what would spoil training or evaluation", "cli.tasks.check"),
  "objective": ("show what an objective makes of a text", "cli.tasks.objective"),
  "prepare": ("turn original files into the TFDS data sets that tasks read", "cli.tasks.prepare"),
  "vocabulary": ("train a SentencePiece vocabulary on a task's text or on files", "cli.tasks.vocabulary"),
}
_WITHOUT_SEQIO = ("objective", "vocabulary")


def configure(parser: argparse.ArgumentParser) -> None:
  add_subcommands(parser, SUBCOMMANDS, "SUBCOMMAND")


def run(args: argparse.Namespace) -> int:
  if args.subcommand not in _WITHOUT_SEQIO:
    load_seqio()
  return run_subcommand(args, SUBCOMMANDS)
