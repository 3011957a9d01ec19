"""Registers tasks with seqio and finds them again by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import seqio

from t5like.errors import UserError, nearest
from t5like.tasks import preprocessors
from t5like.tasks.sources import JsonLinesSource
from t5like.vocabularies import vocabulary_path

# Imported before a name is looked up, so that every shipped task is known.
SHIPPED_MODULES = ("t5like.tasks.embedded_tasks",)


def default_features() -> dict[str, seqio.Feature]:
  """T5's own vocabulary; the token cache can be made with any other."""
  vocabulary = seqio.SentencePieceVocabulary(str(vocabulary_path("t5")), extra_ids=100)
  return {
    "inputs": seqio.Feature(vocabulary, add_eos=True, required=False),
    "targets": seqio.Feature(vocabulary, add_eos=True),
  }


def register_corpus(name: str, files: Mapping[str, str | Path], sizes: Mapping[str, int] | None = None) -> seqio.Task:
  """Registers text to pre-train on: `files` maps a split to JSON lines with a `text` member."""
  return seqio.TaskRegistry.add(
    name,
    source=JsonLinesSource(files, ["text"], sizes),
    preprocessors=[preprocessors.document, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
    output_features={"targets": default_features()["targets"]},
  )


def find_task(name: str, modules: Sequence[str] = ()) -> seqio.Task:
  """The registered task, after importing the shipped task modules and the user's own."""
  for module in (*SHIPPED_MODULES, *modules):
    try:
      importlib.import_module(module)
    except ModuleNotFoundError as error:
      if error.name != module and not module.startswith(f"{error.name}."):
        raise  # the module is there; something it imports is not
      raise UserError(
        f"no task module {module!r}",
        asked_by="TASK_MODULES",
        try_="run from the folder that holds it, or put that folder on PYTHONPATH",
      ) from None
  known = seqio.TaskRegistry.names()
  if name not in known:
    raise UserError(
      f"no task {name!r}",
      nearest=nearest(name, known),
      known=", ".join(sorted(known)),
      try_="--gin.TASK_MODULES=\"['my.module']\" imports the module that registers it",
    )
  return seqio.TaskRegistry.get(name)


def check_split(task: seqio.Task, split: str) -> None:
  if split not in task.splits:
    raise UserError(
      f"task {task.name!r} has no split {split!r}", nearest=nearest(split, task.splits), known=", ".join(task.splits)
    )
