"""The mixtures of fine-tuning, and the columns of the paper's tables that tasks count in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from statistics import fmean

from t5like.errors import UserError
from t5like.experiments.experiment import HEAD_TASKS
from t5like.tasks.metrics.benchmarks import short_name
from t5like.tasks.mixing_rates import GLUE, SUPER_GLUE

# Training examples, which are the mixing weights of tasks trained together.
_GLUE, _SUPER_GLUE = ({task: size for task, size in of.items() if size} for of in (GLUE, SUPER_GLUE))
SIZES = {**_GLUE, **_SUPER_GLUE, "squad": 87_599, "cnn_dailymail": 287_113}
# The paper treats each of these as a single task (section 2.3).
BENCHMARKS = {"glue": tuple(_GLUE), "super_glue": tuple(_SUPER_GLUE)}
# Tasks evaluated under other names than they are trained under; () if they are only trained on.
_EVALUATED = {"glue_mnli": ("glue_mnli_matched", "glue_mnli_mismatched"), "dpr": ()}

OTHER = "other"  # the group of tasks without a column in the paper's tables


@dataclasses.dataclass(frozen=True)
class FinetuningMixture:
  """The tasks that one fine-tuning job trains on, and those it is scored on."""

  name: str  # as requested: squad, glue, or glue_cola+glue_rte
  trained: tuple[str, ...]
  evaluated: tuple[str, ...]

  @property
  def spans(self) -> bool:
    """Whether a head predicts answer spans, in longer rows than those of other heads."""
    return self.trained[0].endswith("_spans")


def parse_mixture(name: str) -> FinetuningMixture:
  """Parses the name of a task, a benchmark, or several of them joined by +."""
  parts = [part for part in name.split("+") if part]
  if not parts or "+".join(parts) != name:
    raise UserError(f"invalid task name: {name!r}", expected="a task, glue, super_glue, or several joined by +")
  trained = tuple(dict.fromkeys(task for part in parts for task in BENCHMARKS.get(part, (part,))))
  evaluated = tuple(task for each in trained for task in _EVALUATED.get(each, (each,)))
  return FinetuningMixture(name, trained, evaluated)


def parse_head_task(name: str) -> FinetuningMixture:
  """Parses the name of a task that is fine-tuned with a head: squad, or the task with labels, squad_spans."""
  if not name or "+" in name or name in BENCHMARKS:
    raise UserError(f"invalid task name: {name!r}", expected="one task for each head, such as glue_sst2 or squad")
  usual = "_spans" if name.startswith("squad") else "_classification"
  form = next((form for form in HEAD_TASKS if name.endswith(form)), usual)
  base = name.removesuffix(form)
  evaluated = tuple(f"{half}{form}" for half in _EVALUATED.get(base, (base,)))
  return FinetuningMixture(name, (f"{base}{form}",), evaluated)


def group_of(task: str) -> str:
  """Returns the column of the paper's tables in which a task counts."""
  for prefix, group in (("super_glue_", "superglue"), ("glue_", "glue"), ("cnn_dailymail", "cnndm")):
    if task.startswith(prefix):
      return group
  return "squad" if short_name(task) == "squad" else OTHER


def group_scores(scores: Mapping[str, float]) -> dict[str, float]:
  """Returns the mean over the tasks of each group that were run; both halves of MNLI count as one task."""
  found: dict[str, dict[str, float]] = {}
  for task, score in scores.items():
    found.setdefault(group_of(task), {})[task] = score
  return {group: average_score(tasks) for group, tasks in found.items()}


def average_score(scores: Mapping[str, float]) -> float:
  """Returns the mean over tasks; both halves of MNLI count as one."""
  found: dict[tuple[str, str], list[float]] = {}
  for task, score in scores.items():
    short = short_name(task)
    found.setdefault((group_of(task), "mnli" if short.startswith("mnli") else short), []).append(score)
  return fmean(fmean(halves) for halves in found.values())
