"""The headline score of a task or benchmark, as its leaderboard and the T5 paper compute it. Plain Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from t5like.errors import UserError, nearest

Scores = Mapping[str, "float | Mapping[str, float]"]

# The metrics that enter the average; a task with several contributes their mean.
GLUE = {
  "cola": ("matthews_corrcoef",),
  "sst2": ("accuracy",),
  "mrpc": ("f1", "accuracy"),
  "stsb": ("pearson_corrcoef", "spearman_corrcoef"),
  "qqp": ("f1", "accuracy"),
  "mnli": ("accuracy",),
  "qnli": ("accuracy",),
  "rte": ("accuracy",),
  "wnli": ("accuracy",),
}
SUPER_GLUE = {
  "boolq": ("accuracy",),
  "cb": ("mean_3class_f1", "accuracy"),
  "copa": ("accuracy",),
  "multirc": ("f1", "exact_match"),
  "record": ("f1", "em"),
  "rte": ("accuracy",),
  "wic": ("accuracy",),
  "wsc": ("accuracy",),
}
# As in the T5 paper's tables (section 2.4 and appendix E), or as usual for the task.
_STANDALONE = {
  "squad": ("em",),
  "squad_v2": ("f1",),
  "cnn_dailymail": ("rouge2",),
  "xsum": ("rouge2",),
  "conll2003": ("f1",),
  "wnut_17": ("f1",),
  **dict.fromkeys(("sick_r", "sts12", "sts13", "sts14", "sts15", "sts16"), ("spearman_corrcoef",)),
}
_FORM = re.compile(r"(_classification|_spans|_tagging)?(_v\d{3})?$")


def short_name(task: str) -> str:
  """Returns the task's name in its benchmark: glue_cola_v002 and glue_cola_classification are cola."""
  return _FORM.sub("", task.removeprefix("super_glue_").removeprefix("glue_"))


def counted_metrics(task: str) -> tuple[str, ...]:
  """Returns the metrics of a registered task that its benchmark averages; () if it has no benchmark."""
  short = short_name(task)
  if task.startswith("super_glue_"):
    return SUPER_GLUE.get(short, ())
  if task.startswith("glue_"):
    return GLUE.get("mnli" if short.startswith("mnli") else short, ())
  return _STANDALONE.get("cnn_dailymail" if task.startswith("cnn_dailymail") else short, ())


def task_score(task: str, metrics: Mapping[str, float]) -> float:
  """Returns the headline score of a task: the mean of the metrics that its benchmark averages.

  For a task without a benchmark, or if one of these metrics is missing, the mean of all its metrics.
  """
  names = counted_metrics(task)
  if not names or any(name not in metrics for name in names):
    names = tuple(metrics)
  if not names:
    raise UserError(f"task {task!r} has no metrics")
  return sum(metrics[name] for name in names) / len(names)


def glue_average(scores_by_task: Scores, include_wnli: bool = False) -> float:
  """Returns the mean over GLUE's tasks.

  `scores_by_task` maps a task (`glue_cola` or `cola`) to its metrics by name, or to its score. MNLI
  is one task: its score is the mean of `mnli_matched` and `mnli_mismatched` if these are given.

  Averages eight tasks, as in the T5 paper (section 2.3), which excludes WNLI because its validation set
  contradicts its training set. The leaderboard averages nine: `include_wnli=True`.
  """
  scores = _by_short_name(scores_by_task, "glue_", {*GLUE, "mnli_matched", "mnli_mismatched", "ax"})
  halves = [scores[half] for half in ("mnli_matched", "mnli_mismatched") if half in scores]
  if len(halves) == 1 and "mnli" not in scores:
    raise UserError(
      "MNLI's score is the mean of mnli_matched and mnli_mismatched, but only one is given",
      try_="score the other, or pass the one you want as `mnli`",
    )
  if len(halves) == 2:
    scores["mnli"] = sum(_counted("glue_mnli", half) for half in halves) / 2
  counted = {task: names for task, names in GLUE.items() if include_wnli or task != "wnli"}
  return _mean(scores, counted, "GLUE", "glue_")


def super_glue_average(scores_by_task: Scores) -> float:
  """Returns the mean over SuperGLUE's eight tasks; tasks are named as in `glue_average`."""
  return _mean(
    _by_short_name(scores_by_task, "super_glue_", {*SUPER_GLUE, "axb", "axg"}), SUPER_GLUE, "SuperGLUE", "super_glue_"
  )


def _by_short_name(scores: Scores, prefix: str, known: set[str]) -> dict[str, float | Mapping[str, float]]:
  found = {task.removeprefix(prefix): score for task, score in scores.items()}
  for task in found:
    if task not in known:
      raise UserError(
        f"no task {task!r} in this benchmark", nearest=nearest(task, known), known=", ".join(sorted(known))
      )
  return found


def _mean(scores: Mapping, tasks: Iterable[str], benchmark: str, prefix: str) -> float:
  if missing := [task for task in tasks if task not in scores]:
    raise UserError(f"the {benchmark} average needs all its tasks", missing=", ".join(missing))
  found = [_counted(f"{prefix}{task}", scores[task]) for task in tasks]
  return sum(found) / len(found)


def _counted(task: str, score: float | Mapping[str, float]) -> float:
  """Returns a task's contribution to the average; all of its averaged metrics are required."""
  if not isinstance(score, Mapping):
    return float(score)
  names = counted_metrics(task)
  if missing := [name for name in names if name not in score]:
    raise UserError(
      f"the score of {short_name(task)} is the mean of {' and '.join(names)}",
      missing=", ".join(missing),
      given=", ".join(score),
    )
  return task_score(task, score)
