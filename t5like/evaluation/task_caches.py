"""Token caches of tasks for evaluation; missing ones are built."""

from __future__ import annotations

from collections.abc import Sequence

from t5like import data
from t5like.errors import UserError
from t5like.experiments import seqio_process
from t5like.inference import Model
from t5like.inference.task_caches import task_caches


class TaskCaches:
  """Opens the token caches of tasks and mixtures."""

  def __init__(
    self, model: Model, cache_dir: str | None, task_modules: Sequence[str], inputs_length: int | None = None
  ):
    self._caches = task_caches(model, cache_dir, task_modules, inputs_length)
    self._modules, self._hint = task_modules, model.source.task_hint(cache_dir)

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
    try:
      return seqio_process.members(name, split, self._modules)
    except UserError as error:
      raise UserError(error.what, **error.lines, hint=self._hint) from None

  def _is_single(self, name: str, split: str) -> bool:
    folder = self._caches.folder(name, split)
    return folder.is_dir() and data.read_mixture(folder, rebuild_command="") is None
