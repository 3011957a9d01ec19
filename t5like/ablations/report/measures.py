"""How well the order of rows is reproduced, by several measures of the same runs.

Exact match and the mean over GLUE are the paper's columns. At small scales other measures of the same runs are less
noisy: F1, which credits answers that are nearly right; the loss of the true answers, which is smooth; and the mean over
tasks after standardizing each, in which a task with a wide range of scores counts no more than the others.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence

from t5like.ablations.benchmarks import OTHER, group_of
from t5like.ablations.report.columns import GROUP_NAMES, column_score
from t5like.ablations.report.pairing import PairedFit, Scores, fit_pairs, spearman_interval
from t5like.ablations.report.statistics import TIE_DEVIATIONS, RankCorrelation, mean, rank_correlation
from t5like.ablations.sweep.results import Result, without_step
from t5like.ablations.tables import GROUPS, STANDARD_DEVIATION, Table
from t5like.tasks.metrics.benchmarks import task_score

ALL = 0  # the number of the row for all recipes


@dataclasses.dataclass(frozen=True)
class OrderAgreement:
  """Our order of the rows of a table against the paper's, by one measure."""

  correlation: RankCorrelation | None
  interval: tuple[float, float] | None  # of Spearman's rho
  clear: int  # pairs of rows that differ by more than two of the paper's standard deviations
  same: int  # of these: in the same direction
  reversed_clearly: int  # of these: in the opposite direction by more than two of our standard deviations


@dataclasses.dataclass(frozen=True)
class Measure:
  """A score of a run, larger is better, and the paper's column that it is compared with."""

  name: str
  group: str
  scores: dict[str, dict[int, float]]  # by recipe, by seed
  agreements: dict[int | str, OrderAgreement]  # by table; ALL: each of the T5 paper's recipes once


def measure_all(results: Sequence[Result], tables: Sequence[Table]) -> list[Measure]:
  """Returns the measures that the runs have, with their agreement in each of the paper's tables."""
  standardized = _standardized(results)
  known: list[tuple[str, str, Callable[[Result], float | None]]] = [
    ("SQuAD exact match", "squad", lambda r: r.tasks.get("squad", {}).get("em")),
    ("SQuAD F1", "squad", lambda r: r.tasks.get("squad", {}).get("f1")),
    ("SQuAD loss of true answers", "squad", lambda r: -r.losses["squad"] if "squad" in r.losses else None),
    ("GLUE mean", "glue", lambda r: r.scores.get("glue")),
    ("GLUE and NLI, standardized", "glue", lambda r: standardized.get((r.recipe, r.seed))),
  ]
  columns = dict.fromkeys(column for table in tables for column in table.groups if column not in GROUPS)
  known += [(GROUP_NAMES[column], column, functools.partial(column_score, column=column)) for column in columns]
  measures = []
  for name, group, value in known:
    scores: dict[str, dict[int, float]] = {}
    for result in results:
      if (found := value(result)) is not None:
        scores.setdefault(result.recipe, {})[result.seed] = found
    if scores and any(group in row.paper for table in tables for row in table.rows):
      measures.append(Measure(name, group, scores, _agreements(scores, group, tables)))
  return measures


def _standardized(results: Sequence[Result]) -> dict[tuple[str, int], float]:
  """Returns the mean over GLUE tasks and SNLI of the distance from all runs' mean, in standard deviations."""
  tasks = {t for r in results for t in r.tasks if group_of(t) == "glue" or (group_of(t) == OTHER and "nli" in t)}
  scores = {
    t: {(r.recipe, r.seed): task_score(t, without_step(r.tasks[t])) for r in results if t in r.tasks}
    for t in sorted(tasks)
  }
  scores = {t: of for t, of in scores.items() if len(of) == len(results)}  # the same tasks for every run
  spreads = {t: statistics.pstdev(of.values()) for t, of in scores.items()}
  used = [t for t in scores if spreads[t] > 0]
  centers = {t: mean(scores[t].values()) for t in used}
  runs = [(r.recipe, r.seed) for r in results]
  return {run: mean([(scores[t][run] - centers[t]) / spreads[t] for t in used]) for run in runs} if used else {}


def _agreements(scores: Scores, group: str, tables: Sequence[Table]) -> dict[int | str, OrderAgreement]:
  fit = fit_pairs(scores)
  found, overall = {}, {}
  for table in tables:
    rows = {row.recipe: row.paper[group] for row in table.rows if row.paper.get(group) is not None}
    band = TIE_DEVIATIONS * table.deviations.get(group, 0.0)
    found[table.number] = agreement({r: p for r, p in rows.items() if r in scores}, scores, fit, band)
    if isinstance(table.number, int):  # scores of other papers are on another scale
      overall = rows | overall  # the first table's score: the paper has two for one recipe
  band = TIE_DEVIATIONS * STANDARD_DEVIATION.get(group, 0.0)
  found[ALL] = agreement({r: p for r, p in overall.items() if r in scores}, scores, fit, band)
  return found


def agreement(paper: Mapping[str, float], scores: Scores, fit: PairedFit, band: float) -> OrderAgreement:
  """Compares our order of some recipes with the paper's, whose differences beyond `band` are clear."""
  means = {recipe: mean(scores[recipe].values()) for recipe in paper}
  seeds = [len(scores[recipe]) for recipe in paper]
  correlation = rank_correlation(list(means.values()), list(paper.values())) if paper else None
  interval = spearman_interval(list(means.values()), seeds, list(paper.values()), fit.residuals)
  pairs = [(a, b) for a, b in itertools.permutations(paper, 2) if paper[a] - paper[b] > band]
  differences = [means[a] - means[b] for a, b in pairs]
  limit = TIE_DEVIATIONS * fit.spread.deviation if fit.spread else float("inf")
  return OrderAgreement(
    correlation, interval, len(pairs), sum(d > 0 for d in differences), sum(d < -limit for d in differences)
  )
