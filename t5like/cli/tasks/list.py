"""Every registered task with its splits, by the data it reads, and every mixture.

t5like tasks list
t5like tasks list glue --task_modules=my.tasks
"""

from __future__ import annotations

import argparse
import collections
from typing import Any

from t5like.cli.options import add_task_modules, task_modules
from t5like.console import paint
from t5like.errors import UserError

LOCAL = "local files"


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("part", nargs="?", default="", help="only names that contain this")
  add_task_modules(parser)


def run(args: argparse.Namespace) -> int:
  from t5like.tasks import registry

  names = registry.task_names(task_modules(args))
  tasks = {name: registry.find_task(name) for name in names}
  corpora = {name: _objectives(name, tasks) for name in tasks}
  # A corpus stands for its tasks with every objective.
  implied = {f"{name}_{objective}" for name in corpora if args.part in name for objective in corpora[name]}
  groups = collections.defaultdict(list)
  for name, task in tasks.items():
    if args.part in name and name not in implied:
      groups[_group(task)].append(task)
  mixtures = [name for name in registry.mixture_names() if args.part in name]
  if not groups and not mixtures:
    raise UserError(f"no task or mixture has {args.part!r} in its name", try_="t5like tasks list")
  width = max(len(name) for name in (*mixtures, *(t.name for group in groups.values() for t in group))) + 2
  for group in sorted(groups, key=lambda group: (group != LOCAL, group)):
    print(paint(group, "bold"))
    for task in groups[group]:
      objectives = len(corpora[task.name])
      more = f"   and {task.name}_<objective> for {objectives} objectives" if objectives else ""
      print(f"  {task.name:<{width}}{_splits(task)}{more}")
  if mixtures:
    print(paint("mixtures", "bold"))
    for name in mixtures:
      count = sum(1 for task in registry.find_task_or_mixture(name).tasks if "train" in task.splits)
      print(f"  {name:<{width}}{count} tasks")
    print("  (t5like tasks show MIXTURE prints the shares)")
  return 0


def _objectives(name: str, tasks: dict[str, Any]) -> list[str]:
  from t5like.objectives import CATALOGUE

  return [objective for objective in CATALOGUE if f"{name}_{objective}" in tasks]


def _group(task: Any) -> str:
  from t5like.tasks.missing_data import tfds_name

  name = tfds_name(task)
  return f"TFDS {name.partition('/')[0]}" if name else LOCAL


def _splits(task: Any) -> str:
  from t5like.tasks.mixtures import known_size

  try:
    sizes = {split: known_size(task, split) for split in task.splits}
  except ValueError:  # seqio asks TFDS for the splits of a data set that is not here
    return "splits as TFDS has them"
  return ", ".join(f"{split} {size:,}" if size is not None else split for split, size in sizes.items())
