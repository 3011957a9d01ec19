"""The table of a suite: mean and spread of every task over its seeds, best and last, and the average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from t5like.ablations.benchmarks import average_score
from t5like.ablations.report.statistics import standard_deviation
from t5like.ablations.sweep.results import Result, run_name, without_step
from t5like.console import table
from t5like.tasks.metrics.benchmarks import task_score

AVERAGE = "average"
NOTE = (
  "score: of each run's best checkpoint, chosen on the same split that the score is of, which favors it;\n"
  "last: of its last evaluation, without a choice. ± is the standard deviation over seeds."
)


def scores_by_task(results: Sequence[Result], last: bool = False) -> dict[str, dict[int, float]]:
  """Returns the headline score of every task at its best checkpoint, or at its last, by seed."""
  found: dict[str, dict[int, float]] = {}
  for result in results:
    for task, metrics in (result.last if last else result.tasks).items():
      found.setdefault(task, {})[result.seed] = task_score(task, without_step(metrics))
  return found


def averages(scores: Mapping[str, Mapping[int, float]]) -> list[float]:
  """Returns the average over tasks of each seed with which all of them were run; both halves of MNLI are one task."""
  seeds = set.intersection(*(set(by_seed) for by_seed in scores.values())) if scores else set()
  return [average_score({task: by_seed[seed] for task, by_seed in scores.items()}) for seed in sorted(seeds)]


def suite_table(results: Sequence[Result]) -> str:
  """Returns a line per task, in the order of the results, and the average, with a note; '' without results.

  A score is the mean of the metrics that the benchmark averages, and ± is the standard deviation over seeds.
  """
  if not results:
    return ""
  scores, last = scores_by_task(results), scores_by_task(results, last=True)
  by_task = {task: [result for result in results if task in result.tasks] for task in scores}
  rows = [["task", "score", "", "last", "", "best", "seeds", "best checkpoint", "metrics"]]
  for task, of_task in by_task.items():
    best = max(of_task, key=lambda result: scores[task][result.seed])
    checkpoint = f"runs/{run_name(best.recipe, best.seed)}/checkpoints/{best.tasks[task]['best_step']}"
    values = list(scores[task].values())
    shown = [*mean_and_spread(values), *mean_and_spread(list(last.get(task, {}).values()))]
    rows.append([task, *shown, f"{max(values):.2f}", str(len(values)), checkpoint, metrics_text(task, of_task)])
  if (found := averages(scores)) and len(scores) > 1:
    shown = [*mean_and_spread(found), *mean_and_spread(averages(last) if len(last) == len(scores) else [])]
    rows.append([AVERAGE, *shown, f"{max(found):.2f}", str(len(found)), "", ""])
  return f"{table(rows, right=(1, 3, 5, 6))}\n{NOTE}"


def metrics_text(task: str, results: Sequence[Result]) -> str:
  """Returns mean and spread of the metrics that all seeds have; nothing if the score is the only one."""
  by_name = [without_step(result.tasks[task]) for result in results]
  names = [name for name in by_name[0] if all(name in metrics for metrics in by_name)]
  shown = (f"{name} {' '.join(mean_and_spread([m[name] for m in by_name]))}".rstrip() for name in names)
  return ", ".join(shown) if len(names) > 1 else names[0]


def mean_and_spread(values: Sequence[float]) -> tuple[str, str]:
  """Returns both as text; blank without values: results of earlier versions have no last evaluation."""
  if not values:
    return "", ""
  spread = standard_deviation(values)
  return f"{fmean(values):.2f}", "" if spread is None else f"± {spread:.2f}"
