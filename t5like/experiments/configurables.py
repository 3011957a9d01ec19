"""Functions with which gin files compute values of a run from others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import gin

from t5like.errors import UserError


def steps_of_epochs(examples: int, batch_size: int, epochs: float = 1.0, at_most: int | None = None) -> int:
  """Returns the number of steps in which `examples` are read `epochs` times, at least one."""
  for name, value in (("number of examples", examples), ("batch size", batch_size), ("number of epochs", epochs)):
    if not value > 0:
      raise UserError(f"invalid {name}: {value!r}", expected="a positive number")
  steps = max(round(examples * epochs / batch_size), 1)
  return steps if at_most is None else min(steps, at_most)


def share_of(number: int, share: float) -> int:
  """Returns a share of a number, such as of steps, at least one; above 1, a multiple."""
  if not 0 <= share < math.inf:
    raise UserError(f"invalid share: {share!r}", expected="0 or more, such as 0.1")
  return max(round(number * share), 1)


# By the end of a task's name.
_USUAL_METRICS = {"_classification": "accuracy", "_text_to_text": "accuracy", "_tagging": "f1", "_spans": "f1"}


def eval_metric(task: str, metric: str = "", eval_tasks: Sequence[str] = (), split: str = "validation") -> str:
  """Returns the full name of a score, eval/TASK/METRIC, of the first of `eval_tasks` if any; "" without a split.

  Without a metric, it is the usual one of the task's form.
  """
  task = eval_tasks[0] if eval_tasks else task
  metric = metric or next((usual for end, usual in _USUAL_METRICS.items() if task.endswith(end)), "")
  if split and not metric:
    raise UserError(f"no metric for task {task!r}", try_="--gin.METRIC=..., one of those that the task computes")
  return split and f"eval/{task}/{metric}"


for _function in (steps_of_epochs, share_of, eval_metric):
  gin.external_configurable(_function)
