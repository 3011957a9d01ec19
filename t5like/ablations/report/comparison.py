"""Compares our scores with the paper's, row by row, in points and in standard deviations over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from t5like.ablations.benchmarks import OTHER
from t5like.ablations.report.columns import LOWER_IS_BETTER, PERPLEXITY, column_score
from t5like.ablations.report.data import ReportData
from t5like.ablations.report.measures import Measure, measure_all
from t5like.ablations.report.pairing import fit_pairs
from t5like.ablations.report.statistics import (
  TIE_DEVIATIONS,
  RankCorrelation,
  Spread,
  mean,
  rank_correlation,
  standard_deviation,
  ties_with_best,
)
from t5like.ablations.sweep.results import Result
from t5like.ablations.tables import (
  BASELINE,
  BASELINE_RECIPE,
  GROUPS,
  NO_PRETRAINING,
  NO_PRETRAINING_RECIPE,
  Table,
  TableRow,
)

OTHER_RECIPES = 0  # the number of the table of recipes that are not in the paper


@dataclasses.dataclass(frozen=True)
class Cell:
  """One row in one group. None means missing: not run, or nothing to compare with."""

  seeds: dict[int, float]
  paper: float | None
  baseline: float | None = None  # ours
  paper_baseline: float | None = None
  spread: float | None = None  # of one run of ours
  paper_spread: float | None = None
  tie: bool = False
  paper_tie: bool = False
  lower_is_better: bool = False

  @property
  def mean(self) -> float | None:
    return mean(list(self.seeds.values())) if self.seeds else None

  @property
  def deviation(self) -> float | None:
    """The standard deviation of these seeds alone."""
    return standard_deviation(list(self.seeds.values()))

  @property
  def difference(self) -> float | None:
    """The difference from the baseline, in points."""
    return None if self.mean is None or self.baseline is None else self.mean - self.baseline

  @property
  def paper_difference(self) -> float | None:
    return None if self.paper is None or self.paper_baseline is None else self.paper - self.paper_baseline

  @property
  def in_spreads(self) -> float | None:
    """The difference in standard deviations over seeds."""
    return None if self.difference is None or not self.spread else self.difference / self.spread

  @property
  def paper_in_spreads(self) -> float | None:
    return None if self.paper_difference is None or not self.paper_spread else self.paper_difference / self.paper_spread


@dataclasses.dataclass(frozen=True)
class ComparedRow:
  name: str
  recipe: str
  cells: dict[str, Cell]  # by group
  results: list[Result]
  missing_seeds: list[int]
  requested: bool = True
  error: str = ""  # of a failed run
  reference: bool = False  # the baseline, added to a table without it; ignored in rank correlations and ties
  is_baseline: bool = False


@dataclasses.dataclass(frozen=True)
class ComparedTable:
  number: int | str
  title: str
  rows: list[ComparedRow]
  groups: list[str]  # those that were run
  not_run: list[str]
  correlations: dict[str, RankCorrelation | None]  # by group: our ranking of the rows against the paper's
  baseline: str = BASELINE_RECIPE
  paper: str = ""

  @property
  def own_rows(self) -> list[ComparedRow]:
    return [row for row in self.rows if not row.reference]

  @property
  def heading(self) -> str:
    return f"Table {self.number}: {self.title}" if self.number else self.title


@dataclasses.dataclass(frozen=True)
class TableComparison:
  data: ReportData
  tables: list[ComparedTable]
  spreads: dict[str, Spread | None]  # by group
  groups: list[str]  # those that were run
  correlations: dict[str, RankCorrelation | None]  # over all recipes with scores in the paper, each once
  measures: list[Measure]  # of the order of rows


def compare(data: ReportData) -> TableComparison:
  groups = [g for g in _columns(data) if any(column_score(result, g) is not None for result in data.results)]
  by_recipe: dict[str, list[Result]] = {}
  for result in data.results:
    by_recipe.setdefault(result.recipe, []).append(result)
  spreads = {
    group: fit_pairs(
      {recipe: _seeds(runs, group) for recipe, runs in by_recipe.items() if _comparable(recipe, group, data)}
    ).spread
    for group in groups
  }
  listed = _all_tables(data, by_recipe)
  tables = [_compare_table(table, data, by_recipe, spreads) for table in listed]
  measures = measure_all(data.results, [table for table in listed if table.number])
  return TableComparison(data, tables, spreads, groups, _overall(tables, groups), measures)


def _columns(data: ReportData) -> list[str]:
  """Returns the columns of the requested tables: all of the T5 paper's, or those of BERT's tables."""
  named = dict.fromkeys(column for table in data.tables for column in (*table.groups, *table.more_groups))
  of_t5 = [*GROUPS, OTHER]
  return of_t5 if set(named) <= set(of_t5) else list(named)


def _comparable(recipe: str, column: str, data: ReportData) -> bool:
  """Whether a recipe counts in a column: perplexities of different objectives are not comparable."""
  rows = [table for table in data.tables if recipe in table.recipes]
  return column != PERPLEXITY or any(column in table.groups for table in rows)


def _all_tables(data: ReportData, by_recipe: Mapping[str, Sequence[Result]]) -> list[Table]:
  """Returns the requested tables, Table 1 if its second row was run, and a table of all other recipes."""
  tables = list(data.tables)
  if NO_PRETRAINING_RECIPE in by_recipe:
    rows = (
      TableRow("Baseline", BASELINE_RECIPE, BASELINE),
      TableRow("No pre-training", NO_PRETRAINING_RECIPE, NO_PRETRAINING),
    )
    tables.insert(0, Table(1, "The gain from pre-training", rows))
  shown = {row.recipe for table in tables for row in table.rows}
  others = tuple(
    TableRow(recipe, recipe, BASELINE if recipe == BASELINE_RECIPE else {})
    for recipe in by_recipe
    if recipe not in shown
  )
  if {row.recipe for row in others} - {BASELINE_RECIPE}:  # the baseline alone needs no table
    like = next((table for table in data.tables if not set(table.groups) <= set(GROUPS)), Table(0, "", ()))
    title = "Recipes that are not in the paper's tables"
    tables.append(dataclasses.replace(like, number=OTHER_RECIPES, title=title, rows=others))
  return tables


def _compare_table(
  table: Table, data: ReportData, by_recipe: Mapping[str, list[Result]], spreads: Mapping[str, Spread | None]
) -> ComparedTable:
  more = [group for group in table.more_groups if group in spreads]
  all_groups = [*table.groups, *more]  # the paper's, and others that were run
  groups = [group for group in all_groups if group in spreads]
  listed = list(table.rows)
  has_baseline = any(row.recipe == table.baseline for row in listed)
  if not has_baseline:
    name = "Baseline (of Table 1)" if table.baseline == BASELINE_RECIPE else "Baseline"
    listed.append(TableRow(name, table.baseline, table.baseline_scores))
  ours = {group: {row.recipe: _seeds(by_recipe.get(row.recipe, ()), group) for row in listed} for group in all_groups}
  ties, paper_ties = {}, {}
  for group in all_groups:
    means = {row.recipe: mean(list(ours[group][row.recipe].values())) for row in table.rows if ours[group][row.recipe]}
    spread = spreads.get(group)
    sign = -1.0 if group in LOWER_IS_BETTER else 1.0
    means = {recipe: sign * value for recipe, value in means.items()}
    ties[group] = ties_with_best(means, spread.deviation) if spread and len(means) > 1 else set()
    published = {row.recipe: sign * row.paper[group] for row in table.rows if row.paper.get(group) is not None}
    paper_ties[group] = ties_with_best(published, table.deviations.get(group, 0.0))

  def cell(row: TableRow, group: str) -> Cell:
    base = list(ours[group][table.baseline].values())
    return Cell(
      seeds=ours[group][row.recipe],
      paper=row.paper.get(group),
      baseline=mean(base) if base else None,
      paper_baseline=table.baseline_scores.get(group),
      spread=spreads[group].deviation if spreads.get(group) else None,
      paper_spread=table.deviations.get(group),
      tie=row.recipe in ties[group],
      paper_tie=row.recipe in paper_ties[group],
      lower_is_better=group in LOWER_IS_BETTER,
    )

  rows = []
  for row in listed:
    runs = by_recipe.get(row.recipe, [])
    errors = [failure.error for failure in data.failures if failure.recipe == row.recipe]
    rows.append(
      ComparedRow(
        name=row.name,
        recipe=row.recipe,
        cells={group: cell(row, group) for group in all_groups},
        requested=data.requested(row.recipe),
        results=runs,
        missing_seeds=[seed for seed in data.seeds if seed not in {run.seed for run in runs}],
        error=errors[0] if errors else "",
        reference=not has_baseline and row.recipe == table.baseline,
        is_baseline=row.recipe == table.baseline,
      )
    )
  own = [row for row in rows if not row.reference]
  correlations = {group: _correlation([row.cells[group] for row in own]) for group in groups}
  not_run = [group for group in all_groups if group not in groups]
  return ComparedTable(table.number, table.title, rows, groups, not_run, correlations, table.baseline, table.paper)


def _seeds(results: Sequence[Result], group: str) -> dict[int, float]:
  scores = {result.seed: column_score(result, group) for result in results}
  return {seed: score for seed, score in scores.items() if score is not None}


def _correlation(cells: Sequence[Cell]) -> RankCorrelation | None:
  pairs = [(cell.mean, cell.paper) for cell in cells if cell.mean is not None and cell.paper is not None]
  return rank_correlation(*zip(*pairs, strict=True)) if pairs else None


def _overall(tables: Sequence[ComparedTable], groups: Sequence[str]) -> dict[str, RankCorrelation | None]:
  """Correlates over all recipes, each with its score in the first table (the paper has two scores for one of them)."""
  found = {}
  for group in groups:
    cells = {}
    for table in tables:
      for row in table.rows if isinstance(table.number, int) else ():  # scores of other papers are on another scale
        if group in row.cells:
          cells.setdefault(row.recipe, row.cells[group])
    found[group] = _correlation(list(cells.values()))
  return found


def beyond_band(in_spreads: float | None) -> bool:
  return in_spreads is not None and abs(in_spreads) > TIE_DEVIATIONS + 1e-9
