"""The columns of tables: groups of tasks in the T5 paper; single tasks and the perplexity in BERT's."""

from __future__ import annotations

import dataclasses
import math

from t5like.ablations.benchmarks import OTHER
from t5like.ablations.sweep.results import Result
from t5like.tasks.metrics.benchmarks import short_name


@dataclasses.dataclass(frozen=True)
class TaskColumn:
  """One metric of one task."""

  name: str
  task: str  # its short name
  metric: str = "accuracy"


_TASKS = {
  "mnli_matched": TaskColumn("MNLI-m", "mnli_matched"),
  "qnli": TaskColumn("QNLI", "qnli"),
  "mrpc": TaskColumn("MRPC", "mrpc"),
  "sst2": TaskColumn("SST-2", "sst2"),
  "squad_f1": TaskColumn("SQuAD F1", "squad", "f1"),
  "snli": TaskColumn("SNLI", "snli"),
  "rte": TaskColumn("RTE", "rte"),
  "cola": TaskColumn("CoLA", "cola", "matthews_corrcoef"),
  "stsb": TaskColumn("STS-B", "stsb", "pearson_corrcoef"),
  "qqp": TaskColumn("QQP", "qqp"),
}
PERPLEXITY = "perplexity"  # of held-out text, after pre-training
LOWER_IS_BETTER = frozenset({PERPLEXITY})
GROUP_NAMES = {
  "glue": "GLUE",
  "cnndm": "CNN/DM",
  "squad": "SQuAD",
  "superglue": "SuperGLUE",
  OTHER: "other tasks",
  PERPLEXITY: "LM perplexity (lower is better)",
  **{key: column.name for key, column in _TASKS.items()},
}


def column_score(result: Result, column: str) -> float | None:
  """Returns the score of a run in a column; None if it has none, or one that is not finite."""
  if column == PERPLEXITY:
    found = None if result.validation_loss is None else math.exp(min(result.validation_loss, 700))
  elif column in _TASKS:
    wanted = _TASKS[column]
    of_task = (metrics for task, metrics in result.tasks.items() if _is(task, wanted.task))
    found = next((metrics[wanted.metric] for metrics in of_task if wanted.metric in metrics), None)
  else:
    found = result.scores.get(column)
  return found if found is not None and math.isfinite(found) else None


def _is(task: str, short: str) -> bool:
  return short_name(task) == short and not task.startswith("super_glue_")
