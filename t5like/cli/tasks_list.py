"""Every registered task and mixture, with its splits, by the module that registers it.

t5like tasks list
t5like tasks list glue --task_modules=my.tasks
"""

import argparse

from t5like.cli.tasks import add_task_modules, task_modules


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("part", nargs="?", default="", help="only names that contain this")
  add_task_modules(parser)


def run(args: argparse.Namespace) -> int:
  from t5like.tasks import registry

  for name in registry.task_names(task_modules(args)):
    if args.part in name:
      print(name)
  return 0
