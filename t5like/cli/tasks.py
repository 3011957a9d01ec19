"""Look at the registered seqio tasks, check them, and prepare their data where nothing can be downloaded.

t5like tasks list
t5like tasks show snli --n=3
"""

import argparse

from t5like.cli.subcommands import add_subcommands, run_subcommand
from t5like.tasks.quiet_start import load_seqio

SUBCOMMANDS = {
  "list": ("name every task and mixture that is registered", "tasks_list"),
  "show": ("print examples as they are, as text and as tokens, or a mixture's shares", "tasks_show"),
  "check": ("look for what would spoil training or evaluation", "tasks_check"),
  "objective": ("show what an objective makes of a text", "tasks_objective"),
  "prepare": ("turn original files into the TFDS data sets that tasks read", "tasks_prepare"),
  "vocabulary": ("train a SentencePiece vocabulary on a task's text or on files", "tasks_vocabulary"),
}
_WITHOUT_SEQIO = ("objective", "vocabulary")


def configure(parser: argparse.ArgumentParser) -> None:
  add_subcommands(parser, SUBCOMMANDS, "SUBCOMMAND")


def run(args: argparse.Namespace) -> int:
  if args.subcommand not in _WITHOUT_SEQIO:
    load_seqio()
  return run_subcommand(args, SUBCOMMANDS)


def add_task_modules(parser: argparse.ArgumentParser) -> None:
  """The option of every command that looks tasks up."""
  parser.add_argument(
    "--task_modules",
    action="append",
    default=[],
    metavar="MODULE",
    help="a module of yours to import, for the tasks, objectives and metrics it has; repeat it, or use commas",
  )


def task_modules(args: argparse.Namespace) -> list[str]:
  return [module for given in args.task_modules for module in given.split(",") if module]
