"""List, inspect and check seqio tasks, and prepare their data offline.

t5like tasks list
t5like tasks show snli --n=3
"""

import argparse

from t5like.cli.subcommands import add_subcommands, run_subcommand
from t5like.tasks.quiet_start import load_seqio

SUBCOMMANDS = {
  "list": ("list the registered tasks and mixtures", "cli.tasks.list"),
  "show": ("print raw examples, their text and tokens, or the shares of a mixture", "cli.tasks.show"),
  "check": ("check a task for problems in training or evaluation", "cli.tasks.check"),
  "objective": ("apply an objective to a text", "cli.tasks.objective"),
  "prepare": ("convert original files to the TFDS data sets that tasks read", "cli.tasks.prepare"),
  "vocabulary": ("train a SentencePiece, WordPiece or BPE vocabulary on a task or on files", "cli.tasks.vocabulary"),
}
_WITHOUT_SEQIO = ("objective", "vocabulary")


def configure(parser: argparse.ArgumentParser) -> None:
  add_subcommands(parser, SUBCOMMANDS, "SUBCOMMAND")


def run(args: argparse.Namespace) -> int:
  if args.subcommand not in _WITHOUT_SEQIO:
    load_seqio()
  return run_subcommand(args, SUBCOMMANDS)
