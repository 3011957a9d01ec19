"""Token caches of tasks for evaluation; missing ones are built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from t5like import data
from t5like.errors import UserError
from t5like.experiments import seqio_process
from t5like.experiments.examples import save_examples
from t5like.files import storage
from t5like.files.storage import DEFAULT_ROOT
from t5like.inference import Model
from t5like.inference.rows import read_rows
from t5like.inference.task_caches import recorded_files, task_caches
from t5like.models.heads import WithHead


class TaskCaches:
  """Opens the token caches of tasks and mixtures."""

  def __init__(
    self,
    model: Model,
    cache_dir: str | None,
    task_modules: Sequence[str],
    inputs_length: int | None = None,
    files: Mapping[str, str] | None = None,
  ):
    """`files` by split are the rows of all tasks that are opened."""
    self._files = with_classes(model, files, cache_dir or DEFAULT_ROOT) if files else {}
    self._caches = task_caches(model, cache_dir, task_modules, inputs_length, self._files)
    self._modules, self._hint = task_modules, model.source.task_hint(cache_dir)
    self._recorded = recorded_files(model)

  def open(self, name: str, split: str) -> dict[str, data.TokenCache]:
    """Returns the caches of a task, or of all tasks of a mixture, by task name."""
    tasks = [name] if self._is_single(name, split) else self._members(name, split)
    return {task: self._caches.open_or_build(task, split)[0].cache for task in tasks}

  def open_task(self, task: str, split: str) -> data.TokenCache:
    (cache,) = self.open(task, split).values()
    return cache

  def is_labeled(self, task: str, split: str) -> bool:
    """Whether labeled examples of a task are cached, so that seqio is not needed."""
    return self._is_single(task, split) and not self._caches.open_or_build(task, split)[0].cache.is_corpus

  def _members(self, name: str, split: str) -> list[str]:
    """Returns all tasks of a mixture: training may use only some of them, evaluation uses all."""
    own = self._recorded.get(name)
    if own and not self._caches.folder(name, split).is_dir():
      raise UserError(
        f"task {name!r} has no token cache of split {split!r}: it is rows of the run's own",
        files=", ".join(f"{known}={pattern}" for known, pattern in own.items()),
        try_=f"--files={split}=FILE, in Python rows=...",
      )
    try:
      return seqio_process.members(name, split, self._modules)
    except UserError as error:
      raise UserError(error.what, **error.lines, hint=self._hint) from None

  def _is_single(self, name: str, split: str) -> bool:
    if self._files:
      return True
    folder = self._caches.folder(name, split)
    return folder.is_dir() and data.read_mixture(folder, rebuild_command="") is None


def with_classes(model: Model, files: Mapping[str, str], folder: str) -> dict[str, str]:
  """Adds a training split, which numbers the classes of rows, to files without one: the classes of the model's head."""
  if "train" in files or not isinstance(model.module, WithHead):
    return dict(files)
  head, labels = model.module.head, list(getattr(model.module.head, "labels", ()))
  pair = {"text_pair": "-"} if "text_pair" in _first_row(next(iter(files.values()))) else {}
  rows = {
    "classification": [{"text": label, **pair, "label": label} for label in labels],
    "multi_label": [{"text": "-", **pair, "label": labels}],
    "regression": [{"text": "-", **pair, "label": 0.5}],
    "tagging": [{"tokens": labels, "tags": labels}],
  }.get(head.form)
  return dict(files) | ({"train": save_examples(rows, f"{folder}/examples")} if rows else {})


def _first_row(pattern: str) -> Mapping[str, Any]:
  """Returns the fields of a file's first row, besides its text; {} if it cannot be read, which is reported later."""
  found = storage.matching(pattern)
  row = next(read_rows(found[0], "jsonl", "text"), None) if found else None
  return getattr(row, "fields", None) or {}
