"""Checks that a task can be scored, before any expensive work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from t5like import data
from t5like.errors import UserError
from t5like.evaluation.scoring import check_functions, try_on_targets, with_ids
from t5like.tasks.metrics.values import tried_rows


def check_scorable(cache: data.TokenCache, modules: Sequence[str], examples: int = 0) -> None:
  """Raises UserError if a task has no metrics, or scoring functions outside of t5like, seqio, t5 and `modules`."""
  description = cache.manifest["description"]
  if not cache.scoring["metrics"] and not cache.scoring.get("refused"):
    raise UserError(
      f"task {description['task']!r} has no metric functions and cannot be evaluated by decoding",
      try_="--gin.EVAL_SPLIT=''  (or a task with metrics)",
    )
  check_functions(cache.scoring, modules)
  try_metrics(cache, description["task"], modules, examples)


def try_metrics(cache: data.TokenCache, task: str, modules: Sequence[str], examples: int = 0) -> None:
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
