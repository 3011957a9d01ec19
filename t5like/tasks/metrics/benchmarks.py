"""One number for a benchmark, as its leaderboard and the T5 paper compute it. Plain Python."""

from __future__ import annotations

from collections.abc import Mapping

from t5like.errors import UserError, nearest

Scores = Mapping[str, "float | Mapping[str, float]"]

# The metrics that count; a task with several counts with their mean.
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


def glue_average(scores_by_task: Scores, include_wnli: bool = False) -> float:
  """The mean over GLUE's tasks.

  `scores_by_task` maps a task (`glue_cola` or `cola`) to its metrics by name, or to its score. MNLI
  is one task: its score is the mean of `mnli_matched` and `mnli_mismatched` where these are given.

  Eight tasks count, as in the T5 paper (section 2.3), where WNLI is left out because its validation
  set contradicts its training set; the leaderboard counts nine: `include_wnli=True`.
  """
  scores = _by_short_name(scores_by_task, "glue_", {*GLUE, "mnli_matched", "mnli_mismatched", "ax"})
  halves = [scores[half] for half in ("mnli_matched", "mnli_mismatched") if half in scores]
  if len(halves) == 1 and "mnli" not in scores:
    raise UserError(
      "MNLI's score is the mean of mnli_matched and mnli_mismatched, and only one is given",
      try_="score the other, or give the one you want as `mnli`",
    )
  if len(halves) == 2:
    scores["mnli"] = sum(_task_score("mnli", half, GLUE["mnli"]) for half in halves) / 2
  counted = {task: names for task, names in GLUE.items() if include_wnli or task != "wnli"}
  return _mean(scores, counted, "GLUE")


def super_glue_average(scores_by_task: Scores) -> float:
  """The mean over SuperGLUE's eight tasks; tasks are named as in `glue_average`."""
  return _mean(_by_short_name(scores_by_task, "super_glue_", {*SUPER_GLUE, "axb", "axg"}), SUPER_GLUE, "SuperGLUE")


def _by_short_name(scores: Scores, prefix: str, known: set[str]) -> dict[str, float | Mapping[str, float]]:
  found = {task.removeprefix(prefix): score for task, score in scores.items()}
  for task in found:
    if task not in known:
      raise UserError(
        f"no task {task!r} in this benchmark", nearest=nearest(task, known), known=", ".join(sorted(known))
      )
  return found


def _mean(scores: Mapping, tasks: Mapping[str, tuple[str, ...]], benchmark: str) -> float:
  if missing := [task for task in tasks if task not in scores]:
    raise UserError(f"an average of {benchmark} needs all its tasks", missing=", ".join(missing))
  return sum(_task_score(task, scores[task], names) for task, names in tasks.items()) / len(tasks)


def _task_score(task: str, score: float | Mapping[str, float], names: tuple[str, ...]) -> float:
  if not isinstance(score, Mapping):
    return float(score)
  if missing := [name for name in names if name not in score]:
    raise UserError(
      f"the score of {task} is the mean of {' and '.join(names)}", missing=", ".join(missing), given=", ".join(score)
    )
  return sum(score[name] for name in names) / len(names)
