"""Evaluates a loaded model on tasks: examples are read once, then scored with any parameters."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5like import data
from t5like.console import ProgressLine, say
from t5like.errors import UserError
from t5like.evaluation.evaluated_model import EvaluatedModel
from t5like.evaluation.evaluation_set import EvaluationSet, check_answerable
from t5like.evaluation.evaluator import Evaluator, make_evaluator
from t5like.evaluation.following import NEVER, Stopped, agreed_step
from t5like.evaluation.scoring import Evaluation, check_functions, predictions_path
from t5like.evaluation.settings import EvaluationSettings, description
from t5like.evaluation.task_caches import TaskCaches
from t5like.experiments.examples import save_examples
from t5like.experiments.seqio_process import modules_for
from t5like.files import storage
from t5like.inference import Model


class EvaluationStopped(Exception):
  """Raised when the caller stops an evaluation early."""


class TaskEvaluation:
  """Tasks and mixtures that a model is evaluated on. Use it under the model's `sharding()`."""

  def __init__(self, model: Model, tasks: Sequence[str], settings: EvaluationSettings, without_metrics: bool = False):
    """Opens the tasks and builds missing token caches. `without_metrics` also accepts tasks with withheld targets."""
    self.settings = settings
    if settings.files and len(tasks) != 1:
      raise UserError(f"files are those of one task, not of {len(tasks)}", tasks=", ".join(tasks))
    caches = TaskCaches(model, settings.cache_dir, settings.task_modules, settings.inputs_length, settings.files)
    self._evaluator = make_evaluator(EvaluatedModel.of_loaded(model), settings, caches.open_task)
    opened = {task: cache for name in tasks for task, cache in caches.open(name, settings.split).items()}
    if not without_metrics:
      opened = _with_metrics(opened, settings.task_modules)
    self.sets = [self._read(task, cache) for task, cache in opened.items()]

  def _read(self, task: str, cache: data.TokenCache) -> EvaluationSet:
    if isinstance(self._evaluator, Evaluator):
      check_answerable(task, cache)
    found = self._evaluator.read(task, cache)
    for note in found.notes:
      say(note)
    return found

  @property
  def identity(self) -> dict[str, Any]:
    """The settings that distinguish this evaluation from others of the same tasks."""
    return self._evaluator.identity

  def __call__(self, params: Any, evaluation_set: EvaluationSet, stopped: Stopped = NEVER) -> Evaluation:
    """Scores one of `sets`. Raises EvaluationStopped."""
    line, total = ProgressLine(), len(evaluation_set.fields)

    def progress(done: int) -> None:
      line.show(f"{evaluation_set.task}: {done:,}/{total:,}")
      if jax.process_count() == 1 and stopped():
        line.end_line()
        raise EvaluationStopped

    result = self._evaluator(params, evaluation_set, progress)
    line.end_line()
    for note in result.notes:
      say(note)
    return result


def _with_metrics(caches: dict[str, data.TokenCache], modules: Sequence[str]) -> dict[str, data.TokenCache]:
  """Drops tasks without metrics and reports them; raises UserError if none is left."""
  unscored = [task for task, cache in caches.items() if not cache.scoring["metrics"] and not cache.is_corpus]
  if unscored and len(unscored) == len(caches):
    raise UserError(f"task {unscored[0]!r} has no metric functions; its targets may be withheld", try_="another task")
  if unscored:
    say(f"skipped, no metrics: {', '.join(unscored)}")
  scored = {task: cache for task, cache in caches.items() if task not in unscored}
  for cache in scored.values():
    check_functions(cache.scoring, modules)
  return scored


def write_predictions(
  result: Evaluation, folder: Path, evaluation_set: EvaluationSet, step: int | None, identity: dict[str, Any]
) -> Path:
  """Writes the answers to a folder and returns the file.

  Greedy answers get the same file name as in training; other settings are added to the name.
  """
  examples = identity.get("examples", 0)
  path = predictions_path(folder, evaluation_set.task, evaluation_set.split, step or 0, examples)
  others = description({name: value for name, value in identity.items() if name != "examples"})
  if others:
    slug = re.sub(r"[^\w.]+", "_", others)[:80]
    path = path.with_name(f"{path.stem}-{slug}-{zlib.crc32(others.encode()):08x}.jsonl")
  if jax.process_index() == 0:
    with storage.write_errors("the answers", file=path, try_="--out=DIR"):
      result.write(path, evaluation_set.data)
  return path


def evaluate(
  model: Model,
  task: str,
  split: str = "validation",
  examples: int = 0,
  *,
  rows: Iterable[Mapping[str, Any]] | None = None,
  step: int | None = None,
  out: str | Path | None = None,
  **settings: Any,
) -> Evaluation:
  """Scores a model on a task or on all tasks of a mixture, as `t5like eval` does.

  Args:
    model: a loaded model.
    task: a registered task or mixture; its token cache is built if it is missing. With `rows`, any name with the end
      of their form, such as `films_classification`.
    split: the split to evaluate.
    examples: only the first N of each task; 0: all.
    rows: your own labeled rows, as in `save_examples`: a list of dicts or a DataFrame.
    step: the checkpoint of a run; None: the newest.
    out: a folder for the answers; None: they are not written.
    **settings: other fields of EvaluationSettings (`rank="sum"`, `shots=5`) and of DecodeSettings (`beams=4`).

  Returns the scores, the answers, and the scores of the majority baseline. Scores of a mixture are named TASK/METRIC,
  and `tasks` has the evaluation of each task. Raises UserError.
  """
  if not isinstance(model, Model):
    raise UserError(f"not a model: {model!r}", expected="t5like.load(folder)")
  if not isinstance(task, str):
    raise UserError(f"not the name of a task: {task!r:.100}", try_='evaluate(model, "my_classification", rows=...)')
  modules = modules_for([task], settings.pop("task_modules", model.modules))
  if rows is not None:
    folder = storage.as_path(settings.get("cache_dir") or storage.DEFAULT_ROOT)
    settings |= {"files": {split: save_examples(rows, f"{folder}/examples")}}
  given = EvaluationSettings.of(split=split, examples=examples, task_modules=tuple(modules), **settings)
  with model.sharding():
    tasks = TaskEvaluation(model, [task], given)
    step = agreed_step(model, step)
    params, found = model.parameters(step, given.average), {}
    for evaluation_set in tasks.sets:
      found[evaluation_set.task] = tasks(params, evaluation_set)
      if out is not None:
        write_predictions(
          found[evaluation_set.task], storage.as_path(out).absolute(), evaluation_set, step, tasks.identity
        )
  return found[task] if list(found) == [task] else merge_evaluations(found)


def merge_evaluations(tasks: dict[str, Evaluation]) -> Evaluation:
  """Merges the evaluations of several tasks into one."""
  return Evaluation(
    {f"{task}/{name}": value for task, result in tasks.items() for name, value in result.scores.items()},
    {f"{task}/{name}": value for task, result in tasks.items() for name, value in result.majority.items()},
    [{"task": task, **row} for task, result in tasks.items() for row in result.rows],
    failures={f"{task}/{name}": error for task, result in tasks.items() for name, error in result.failures.items()},
    tasks=tasks,
  )
