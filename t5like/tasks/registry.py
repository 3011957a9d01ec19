"""Registers tasks with seqio and looks them up by name."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import seqio

from t5like.configuration.modules import import_user_module
from t5like.errors import UserError, nearest
from t5like.tasks.caching import identity
from t5like.vocabularies import vocabulary_path

# Imported before a lookup, so that every shipped task is registered.
SHIPPED_MODULES = tuple(
  f"t5like.tasks.{module}"
  for module in (
    "library.embedded_tasks",
    "library.corpora",
    "library.glue",
    "library.super_glue",
    "library.squad",
    "library.summarization",
    "library.translation",
    "library.ner",
    "library.sentences",
    "mixtures",
    "encoders.classification",
    "encoders.embeddings",
    "encoders.squad_spans",
    "encoders.tagging",
  )
)


# The user's module that registered a task or mixture; "": it is shipped. Those of plain seqio are not listed.
REGISTERED_BY: dict[str, str] = {}


class NameTaken(UserError):
  """Another task has the name."""


@functools.cache
def default_features() -> dict[str, seqio.Feature]:
  """Returns features with T5's vocabulary; a token cache can be built with any other."""
  vocabulary = seqio.SentencePieceVocabulary(str(vocabulary_path("t5")), extra_ids=100)
  return {
    "inputs": seqio.Feature(vocabulary, add_eos=True, required=False),
    "targets": seqio.Feature(vocabulary, add_eos=True),
  }


def register_task(name: str, **definition: Any) -> seqio.Task:
  """Registers a task like `seqio.TaskRegistry.add`, but accepts the same definition twice (a rerun notebook cell).

  Takes source, preprocessors, output_features, postprocess_fn, metric_fns and any other argument of seqio.Task.
  """
  if name in seqio.MixtureRegistry.names():
    raise UserError(f"cannot name a task {name!r}: a mixture has that name", try_="another name")
  task = seqio.Task(name, **definition)
  if name not in seqio.TaskRegistry.names():
    seqio.TaskRegistry.add_provider(name, task)
    note_module(name)
    return task
  registered = seqio.TaskRegistry.get(name)
  was, given = identity.definition(registered), identity.definition(task)
  if different := [part for part in was if was[part] != given[part]]:
    raise NameTaken(
      f"a task {name!r} is already registered with another definition",
      differs=", ".join(different),
      try_=f"another name, or seqio.TaskRegistry.remove({name!r}) first",
    )
  return registered


def note_module(name: str) -> None:
  """Notes which module registers a task or mixture: the first one outside of t5like that is being executed."""
  frame = sys._getframe(1)
  while frame.f_back and frame.f_globals.get("__name__", "").startswith("t5like."):
    frame = frame.f_back
  module = frame.f_globals.get("__name__", "")
  REGISTERED_BY[name] = "" if module.startswith("importlib.") else module


def import_modules(modules: Sequence[str] = ()) -> None:
  """Imports the shipped task modules and `modules`, which registers their tasks."""
  for module in (*SHIPPED_MODULES, *modules):
    try:
      import_user_module(module)
    except ModuleNotFoundError as error:
      if error.name != module and not module.startswith(f"{error.name}."):
        raise UserError(
          f"cannot import the task module {module!r}", because=error, try_=f"pip install {error.name}"
        ) from error
      is_file = "/" in module or module.endswith(".py")
      raise UserError(
        f"{module!r} is a file, not the name of a module" if is_file else f"no task module {module!r}",
        requested_by="TASK_MODULES",
        expected=PurePath(module).stem if is_file else "",
        try_="run from the folder that contains it, or put that folder on PYTHONPATH",
      ) from None
    except UserError:
      raise
    except (Exception, SystemExit) as error:
      if module in SHIPPED_MODULES:
        raise
      frame = traceback.extract_tb(error.__traceback__)[-1]
      raise UserError(
        f"cannot import the task module {module!r}",
        because=f"{type(error).__name__}: {error}",
        at=f"{frame.filename}:{frame.lineno}: {frame.line}",
      ) from error


def task_names(modules: Sequence[str] = ()) -> list[str]:
  import_modules(modules)
  return sorted(seqio.TaskRegistry.names())


def mixture_names(modules: Sequence[str] = ()) -> list[str]:
  import_modules(modules)
  return sorted(seqio.MixtureRegistry.names())


def find_task(name: str, modules: Sequence[str] = ()) -> seqio.Task:
  """Returns the registered task, after importing the shipped task modules and `modules`."""
  found = find_task_or_mixture(name, modules)
  if isinstance(found, seqio.Mixture):
    raise UserError(f"{name!r} is a mixture, not a task", try_=", ".join(task.name for task in found.tasks))
  return found


def find_task_or_mixture(name: str, modules: Sequence[str] = ()) -> seqio.Task | seqio.Mixture:
  known = [*task_names(modules), *mixture_names()]
  if name not in known:
    raise UserError(
      f"no task {name!r}",
      nearest=nearest(name, known),
      known=f"{len(known)} tasks and mixtures, see `t5like tasks list`",
      try_="--task_modules=my.module (in training --gin.TASK_MODULES=\"['my.module']\"): the module that registers it",
    )
  return seqio.get_mixture_or_task(name)


def check_mixture_name(name: str) -> None:
  """Raises if a task has this name: seqio would accept the mixture and never find it."""
  if name in seqio.TaskRegistry.names():
    raise UserError(f"cannot name a mixture {name!r}: a task has that name", try_="another name")


def check_split(task: seqio.Task, split: str) -> None:
  if split not in task.splits:
    raise UserError(
      f"task {task.name!r} has no split {split!r}", nearest=nearest(split, task.splits), known=", ".join(task.splits)
    )
  if isinstance(task.source, seqio.FileDataSource) and not task.source.list_shards(split):
    raise UserError(f"no files for split {split!r} of task {task.name!r}", source=task.source)
