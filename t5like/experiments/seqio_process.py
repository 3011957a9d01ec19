"""Queries seqio about tasks in a separate process, so that evaluation runs without TensorFlow.

python -m t5like.experiments.seqio_process '{"ask": "members", "task": "glue", "split": "validation", "modules": []}'
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.tasks.quiet_start import load_seqio


def modules_for(tasks: Iterable[str], given: Sequence[str] = ()) -> list[str]:
  """Returns the modules from which another process gets tasks: those given, else those that this process has imported.

  Raises UserError for a task of a script or a notebook, which another process cannot import.
  """
  seqio, registry = sys.modules.get("seqio"), sys.modules.get("t5like.tasks.registry")
  if given or seqio is None:
    return list(given)
  registered = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
  found = set()
  for task in registered & set(tasks):
    module = getattr(registry, "REGISTERED_BY", {}).get(task)
    found |= {module} if module is not None else _modules_with_seqio(seqio)
    if found == {"__main__"}:
      raise UserError(
        f"task {task!r} is registered in this script or notebook, which the process that tokenizes cannot import",
        try_="move it to a module, such as my_tasks.py, and import that",
      )
  return sorted(found - {"", "__main__"})


def _modules_with_seqio(seqio: Any) -> set[str]:
  """Returns the user's modules that have seqio, or a name of it, among their own: one registers the task."""
  installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
  found = set()
  for name, module in list(sys.modules.items()):
    path = getattr(module, "__file__", None) or ""
    if name != "__main__" and (not path or path.startswith(installed) or name.startswith(("t5like.", "seqio", "__"))):
      continue
    if any(value is seqio or _is_of_seqio(value) for value in list(vars(module).values())):
      found.add(name)
  return found - {"__main__"} or found


def _is_of_seqio(value: Any) -> bool:
  return isinstance(value, type | types.FunctionType) and str(value.__module__).startswith("seqio.")


def members(task: str, split: str, modules: Sequence[str] = ()) -> list[str]:
  """Returns the tasks of a mixture that have this split, even those with rate 0; for a task, itself."""
  return _query({"ask": "members", "task": task, "split": split, "modules": list(modules)})


def shares(
  rates: Mapping[str, float], split: str, modules: Sequence[str] = (), temperature: float = 1.0
) -> list[tuple[str, float, int | None]]:
  """Returns the tasks of a mix of tasks and mixtures: each with its fraction and its size (None if unknown)."""
  request = {"ask": "shares", "task": ", ".join(rates), "rates": dict(rates), "split": split, "modules": list(modules)}
  request["power"] = 1 / temperature
  return [tuple(row) for row in _query(request)]


def label_forms(
  task: str, split: str, modules: Sequence[str] = (), files: Mapping[str, str] | None = None
) -> list[tuple[str, dict[str, Any] | None]]:
  """Returns each task of a mixture and the form of its labels; None: it has no labels for a head.

  `files`, by split, register the task first.
  """
  request = {"ask": "forms", "task": task, "split": split, "modules": list(modules), "files": dict(files or {})}
  return [tuple(row) for row in _query(request)]


def texts(task: str, split: str, limit: int, modules: Sequence[str] = ()) -> dict[str, list[str] | None]:
  """Returns the untokenized documents of a corpus by task, None for labeled examples; `limit` 0: all."""
  return _query({"ask": "texts", "task": task, "split": split, "limit": limit, "modules": list(modules)})


def _query(request: dict[str, Any]) -> Any:
  request["modules"] = modules_for([request["task"]], request["modules"])
  with tempfile.TemporaryDirectory() as folder:
    answer = Path(folder) / "answer.json"
    line = [sys.executable, "-m", "t5like.experiments.seqio_process", json.dumps(request | {"answer": str(answer)})]
    status = subprocess.run(line).returncode
    if status or not answer.is_file():
      raise UserError(f"seqio failed to load task {request['task']!r} (status {status})")
    found = json.loads(answer.read_text(encoding="utf-8"))
  if "error" in found:
    raise UserError(found["error"], **found["lines"])
  return found["answer"]


def _members(request: dict[str, Any]) -> list[str]:
  from t5like.tasks import mixtures, registry

  found = registry.find_task_or_mixture(request["task"], request["modules"])
  split = request["split"]
  if not mixtures.is_mixture(found):
    registry.check_split(found, split)
    return [found.name]
  names = [task.name for task in found.tasks if split in task.splits]
  if not names:
    known = sorted({known for task in found.tasks for known in task.splits})
    raise UserError(f"no task of the mixture {found.name!r} has split {split!r}", known=", ".join(known))
  return names


def _shares(request: dict[str, Any]) -> list[tuple[str, float, int | None]]:
  from t5like.tasks import mixtures, registry

  rows, power = [], request["power"]
  total = sum(rate**power for rate in request["rates"].values())
  for name, rate in request["rates"].items():
    found, part = registry.find_task_or_mixture(name, request["modules"]), rate**power / total
    if mixtures.is_mixture(found):
      drawn = [s for s in mixtures.shares(found, request["split"]) if s.rate > 0]
      part /= sum(s.rate**power for s in drawn)
      rows += [(s.task, part * s.rate**power, s.size) for s in drawn]
    else:
      rows.append((found.name, part, None))
  return rows


def _forms(request: dict[str, Any]) -> list[tuple[str, dict[str, Any] | None]]:
  from t5like.experiments.cache_building import register_files
  from t5like.tasks import registry
  from t5like.tasks.caching.label_forms import label_form

  if request["files"]:
    register_files(request["task"], request["files"])
  return [(name, label_form(registry.find_task(name, request["modules"]))) for name in _members(request)]


def _texts(request: dict[str, Any]) -> dict[str, list[str] | None]:
  import itertools

  from t5like.tasks import registry
  from t5like.tasks.caching import text_pipeline
  from t5like.tasks.missing_data import explain_data_errors

  found = {}
  for name in _members(request):
    task = registry.find_task(name)
    with explain_data_errors(task):
      is_corpus = text_pipeline.text_features(task, request["split"]) == ["targets"]
      examples = text_pipeline.text_examples(task, request["split"]) if is_corpus else ()
      documents = [example["targets"] for example in itertools.islice(examples, request["limit"] or None)]
    found[name] = documents if is_corpus else None
  return found


_ANSWERS = {"members": _members, "shares": _shares, "texts": _texts, "forms": _forms}


def _main(request: dict[str, Any]) -> int:
  load_seqio()
  sys.path.append(os.getcwd())  # for the user's task modules
  try:
    found = {"answer": _ANSWERS[request["ask"]](request)}
  except UserError as error:
    found = {"error": error.what, "lines": error.lines}
  Path(request["answer"]).write_text(json.dumps(found), encoding="utf-8")
  return 0


if __name__ == "__main__":
  sys.exit(_main(json.loads(sys.argv[1])))
