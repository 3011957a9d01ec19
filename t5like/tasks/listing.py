"""Lists the registered tasks and mixtures, grouped by the data they read."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import seqio

from t5like.objectives import CATALOGUE
from t5like.tasks import registry
from t5like.tasks.missing_data import tfds_name
from t5like.tasks.mixtures import known_size

LOCAL = "local files"


@dataclasses.dataclass(frozen=True)
class ListedTask:
  name: str
  splits: Mapping[str, int | None] | None  # split -> size, if known; None if only TFDS knows the splits
  objectives: int  # number of objectives a corpus is registered with, each as a separate task


@dataclasses.dataclass(frozen=True)
class Listing:
  groups: Mapping[str, Sequence[ListedTask]]  # by data source, local files first
  mixtures: Mapping[str, int]  # mixture -> number of tasks with a training split


def list_tasks(part: str = "", modules: Sequence[str] = ()) -> Listing:
  """Returns the tasks and mixtures whose names contain `part`; a corpus and its objectives are one entry."""
  tasks = {name: registry.find_task(name) for name in registry.task_names(modules)}
  variants = {name: [v for objective in CATALOGUE if (v := f"{name}_{objective}") in tasks] for name in tasks}
  implied = {variant for name in tasks if part in name for variant in variants[name]}
  groups = collections.defaultdict(list)
  for name, task in tasks.items():
    if part in name and name not in implied:
      data = tfds_name(task)
      group = f"TFDS {data.partition('/')[0]}" if data else LOCAL
      groups[group].append(ListedTask(name, _splits(task), len(variants[name])))
  mixtures = {
    name: sum("train" in task.splits for task in registry.find_task_or_mixture(name).tasks)
    for name in registry.mixture_names()
    if part in name
  }
  return Listing({name: groups[name] for name in sorted(groups, key=lambda name: (name != LOCAL, name))}, mixtures)


def _splits(task: seqio.Task) -> dict[str, int | None] | None:
  try:
    return {split: known_size(task, split) for split in task.splits}
  except ValueError:  # seqio asks TFDS for the splits, and the data set is not available locally
    return None
