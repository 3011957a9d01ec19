"""Checks that a task can be scored, before any expensive work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from t5like import data
from t5like.errors import UserError
from t5like.evaluation.scoring import (
  Evaluation,
  check_functions,
  find_metrics,
  find_postprocessor,
  metric_scores,
  try_on_targets,
  with_ids,
)
from t5like.tasks.metrics.values import tried_rows

_LIKE_TARGETS = ("classification", "multi_label", "regression", "tagging")  # forms of labels
_TRIED = 8  # examples
_SHIPPED = ("t5like.", "seqio.", "t5.")  # beginnings of modules whose metrics have the same names for all examples


def has_metrics(cache: data.TokenCache) -> bool:
  return bool(cache.scoring["metrics"] or cache.scoring.get("refused"))


def check_scorable(cache: data.TokenCache, modules: Sequence[str], examples: int = 0) -> list[str]:
  """Returns the names of a task's scores, found with its targets as answers.

  Raises UserError if it has no metrics, or scoring functions outside of t5like, seqio, t5 and `modules`.
  """
  description = cache.manifest["description"]
  if not has_metrics(cache):
    raise UserError(
      f"task {description['task']!r} has no metric functions and cannot be evaluated by decoding",
      try_="--gin.EVAL_SPLIT='', or --gin.EVAL_TASKS=... (tasks with metrics)",
    )
  check_functions(cache.scoring, modules)
  return list(try_metrics(cache, description["task"], modules, examples).scores)


def head_scores(cache: data.TokenCache) -> list[str]:
  """Returns the names of the scores of a task whose predictions are known without a model; [] for others."""
  form = data.LabelForm.of(cache)
  embeds = form is not None and form.name == "embedding" and form.target in ("", "regression")
  if form is None or not (embeds or form.name in _LIKE_TARGETS) or form.grouped or not _is_shipped(cache):
    return []
  rows = itertools.islice(cache.fields(), _TRIED)
  fields = [row | ({"labels": row["label"]} if "label" in row else {}) for row in rows]
  postprocess = find_postprocessor(cache.scoring, ())
  functions = [metric.function for metric in find_metrics(cache.scoring, ())]
  try:
    if embeds and form.texts == 2 and not form.target:  # retrieval of the document of each query
      return list(metric_scores(functions, [{0: 1.0}], [[0]]))
    targets = [postprocess(None, example=row, is_target=True) for row in fields]
    return list(metric_scores(functions, targets, targets))
  except Exception:  # a trial must not stop a run: predictions may differ from targets, after all
    return []


def _is_shipped(cache: data.TokenCache) -> bool:
  return all(str(entry.get("function", "")).startswith(_SHIPPED) for entry in cache.scoring["metrics"])


def try_metrics(cache: data.TokenCache, task: str, modules: Sequence[str], examples: int = 0) -> Evaluation:
  """Runs the postprocessor and metrics on the targets, as `t5like tasks check` does."""
  names = [str(entry.get("function", "")).rpartition(":")[2] for entry in cache.scoring["metrics"]]
  count = tried_rows(names, min(examples or cache.examples, cache.examples))
  fields = list(itertools.islice(cache.fields(), count))
  try:
    tried = try_on_targets(cache.scoring, with_ids(fields, cache, eos=1), modules)  # any id: this is a trial
  except UserError:
    raise
  except Exception as error:  # whatever the user's postprocessor raises
    raise UserError(
      f"the postprocessor of task {task!r} fails on the targets", because=f"{type(error).__name__}: {error}"
    ) from error
  if tried.failures:
    name, error = next(iter(tried.failures.items()))
    raise UserError(
      f"the metric {name} of task {task!r} fails on the targets",
      because=error,
      try_=f"t5like tasks check {task}, or --gin.EVAL_SPLIT=''",
    )
  return tried
