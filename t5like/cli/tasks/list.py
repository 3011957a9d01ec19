"""List the registered tasks with their splits, grouped by data source, and the mixtures.

t5like tasks list
t5like tasks list glue --task_modules=my.tasks
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from t5like.cli.options import add_task_modules, task_modules
from t5like.console import paint
from t5like.errors import UserError

if TYPE_CHECKING:
  from t5like.tasks.listing import ListedTask


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("part", nargs="?", default="", help="list only names that contain this text")
  add_task_modules(parser)


def run(args: argparse.Namespace) -> int:
  from t5like.tasks.listing import list_tasks

  found = list_tasks(args.part, task_modules(args))
  names = [*found.mixtures, *(task.name for group in found.groups.values() for task in group)]
  if not names:
    raise UserError(f"no task or mixture name contains {args.part!r}", try_="t5like tasks list")
  width = max(map(len, names)) + 2
  for group, tasks in found.groups.items():
    print(paint(group, "bold"))
    for task in tasks:
      more = f"   also {task.name}_<objective> for {task.objectives} objectives" if task.objectives else ""
      print(f"  {task.name:<{width}}{_splits(task)}{more}")
  if found.mixtures:
    print(paint("mixtures", "bold"))
    for name, count in found.mixtures.items():
      print(f"  {name:<{width}}{count} tasks")
    print("  (t5like tasks show MIXTURE prints the shares)")
  return 0


def _splits(task: ListedTask) -> str:
  if task.splits is None:
    return "splits as in TFDS"
  return ", ".join(f"{split} {size:,}" if size is not None else split for split, size in task.splits.items())
