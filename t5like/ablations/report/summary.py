"""Sentences, computed from the scores, about what agrees with the paper and what does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from t5like.ablations.report.columns import GROUP_NAMES
from t5like.ablations.report.comparison import ComparedRow, ComparedTable, TableComparison, beyond_band
from t5like.ablations.report.conclusions import CheckedConclusion, check_conclusions
from t5like.ablations.report.plots import number, pretty
from t5like.ablations.report.statistics import RankCorrelation
from t5like.ablations.tables import TABLES

_NAMED = 6  # items of a long list that are printed


@dataclasses.dataclass(frozen=True)
class Summary:
  title: str
  scope: str  # what was run
  missing: list[str]
  findings: list[str]
  conclusions: list[CheckedConclusion]
  cautions: list[str]


def summarize(comparison: TableComparison) -> Summary:
  return Summary(
    _title(comparison),
    _scope(comparison),
    _missing(comparison),
    _findings(comparison),
    check_conclusions(comparison),
    _cautions(comparison),
  )


def _title(comparison: TableComparison) -> str:
  papers = {table.paper for table in comparison.data.tables}
  which = "BERT" if papers == {TABLES["bert5"].paper} else "T5"
  return f"{which} ablations at {comparison.data.scale} scale"


def _scope(comparison: TableComparison) -> str:
  data = comparison.data
  recipes = {result.recipe for result in data.results}
  groups = _joined(GROUP_NAMES[group] for group in comparison.groups) or "no task"
  tasks = sorted({task for result in data.results for task in result.tasks})
  scored = f"scored on {groups}" + (f" ({', '.join(tasks)})" if tasks else "")
  papers: dict[str, list[str]] = {}
  for table in comparison.tables:
    if table.number:
      papers.setdefault(table.paper, []).append(str(table.number))
  named = [f"Table{'s' * (len(numbers) > 1)} {_joined(numbers)} of {paper}" for paper, numbers in papers.items()]
  what = _joined(named) or "Custom recipes"
  runs = _count(len(data.results), "finished run")
  return f"{what} at {data.scale} scale: {runs} of {_count(len(recipes), 'recipe')}, {scored}."


def _missing(comparison: TableComparison) -> list[str]:
  rows = {row.recipe: row for table in comparison.tables for row in table.rows}
  absent = [recipe for recipe, row in rows.items() if not row.results and row.requested]
  excluded = [recipe for recipe, row in rows.items() if not row.results and not row.requested]
  partly = [row for row in rows.values() if row.results and row.missing_seeds]
  lines = []
  if absent:
    lines.append(f"Not run: {_some(absent)}.")
  if excluded:
    lines.append(f"Not part of this sweep: {_some(excluded)}.")
  if partly:
    seeds = [f"{row.recipe} (seed {_joined(map(str, row.missing_seeds))})" for row in partly]
    lines.append(f"Missing seeds: {_some(seeds)}.")
  for failure in comparison.data.failures:
    lines.append(f"Failed: {failure.recipe}, seed {failure.seed}: {failure.error.splitlines()[0][:200]}")
  not_run = {group for table in comparison.tables for group in table.not_run} - set(comparison.groups)
  if not_run:
    names = _joined(GROUP_NAMES[group] for group in GROUP_NAMES if group in not_run)
    lines.append(f"No run was scored on {names}; the paper's scores there are in the CSV file.")
  lines += [f"Left out: {text}." for text in comparison.data.left_out]
  return lines


def _findings(comparison: TableComparison) -> list[str]:
  found = (_clear_differences(comparison), _ties(comparison), _signs(comparison), _reversed_rankings(comparison))
  return [line for line in found if line]


def _reversed_rankings(comparison: TableComparison) -> str:
  reversed_ = [
    f"{_short(table)} in {GROUP_NAMES[group]} ({number(found.spearman, signed=True)}, n = {found.n})"
    for table in comparison.tables
    for group, found in table.correlations.items()
    if found is not None and found.spearman is not None and found.spearman < 0
  ]
  return f"The ranking of rows tends to reverse the paper's (Spearman) in {_joined(reversed_)}." if reversed_ else ""


def _compared(comparison: TableComparison) -> Iterable[tuple[ComparedTable, ComparedRow, str]]:
  """Yields rows and groups with a known difference from the baseline on both sides; each recipe once."""
  seen = set()
  for table in comparison.tables:
    for row in table.own_rows:
      for group in table.groups:
        cell = row.cells[group]
        known = cell.difference is not None and cell.paper_difference is not None
        if known and not row.is_baseline and (row.recipe, group) not in seen:
          seen.add((row.recipe, group))
          yield table, row, group


def _clear_differences(comparison: TableComparison) -> str:
  same, same_clear, against, against_clear = [], [], [], []
  for table, row, group in _compared(comparison):
    cell = row.cells[group]
    if not beyond_band(cell.paper_in_spreads):
      continue
    agrees = cell.difference * cell.paper_difference > 0
    name = f"“{pretty(row.name)}” (Table {table.number}, {GROUP_NAMES[group]})"
    (same if agrees else against).append(name)
    if beyond_band(cell.in_spreads):
      (same_clear if agrees else against_clear).append(name)
  total = len(same) + len(against)
  if not total:
    return ""
  text = (
    f"The paper has {_count(total, 'clear difference')} from the baseline here (more than two of its standard "
    f"deviations). Ours have the same sign in {len(same)}, {len(same_clear)} of them beyond our own band, and the "
    f"opposite sign in {len(against)}, {len(against_clear)} of them beyond our band"
  )
  return text + (f": {_some(against_clear)}." if against_clear else ".")


def _ties(comparison: TableComparison) -> str:
  tied, differing = 0, []
  for table, row, group in _compared(comparison):
    cell = row.cells[group]
    if cell.in_spreads is None or cell.paper_spread is None or beyond_band(cell.paper_in_spreads):
      continue
    tied += 1
    if beyond_band(cell.in_spreads):
      differing.append(
        f"“{pretty(row.name)}” (Table {table.number}, {GROUP_NAMES[group]}, {number(cell.in_spreads, 1, signed=True)})"
      )
  if not tied:
    return ""
  text = f"Of {_count(tied, 'difference')} within the paper's band, {tied - len(differing)} are within ours"
  return text + (f"; outside: {_some(differing)}." if differing else ".")


def _signs(comparison: TableComparison) -> str:
  """Compares with papers that have no standard deviations, so that their differences may be clear or not."""
  cells = [row.cells[group] for _, row, group in _compared(comparison) if row.cells[group].paper_spread is None]
  if not cells:
    return ""
  same = [cell.difference * cell.paper_difference > 0 for cell in cells]
  clear = [beyond_band(cell.in_spreads) for cell in cells]
  both = sum(a and b for a, b in zip(same, clear, strict=True))
  return (
    f"Of {_count(len(cells), 'difference')} from the baseline in papers without standard deviations, ours have the "
    f"same sign in {sum(same)}, {both} of them beyond our band; {sum(clear) - both} of the others are beyond it."
  )


def _cautions(comparison: TableComparison) -> list[str]:
  lines = []
  if comparison.data.scale != "paper":
    lines.append(
      f"At {comparison.data.scale} scale models are smaller and trained for fewer steps than the paper's: compare "
      "rankings and differences, not absolute scores."
    )
  run = {result.recipe for result in comparison.data.results}
  for baseline in dict.fromkeys(table.baseline for table in comparison.tables):
    if baseline not in run:
      lines.append(f"The baseline ({baseline}) was not run: no differences can be computed.")
  for group, spread in comparison.spreads.items():
    name = GROUP_NAMES[group]
    if spread is None:
      lines.append(f"{name}: the standard deviation over seeds is unknown, so any difference may be chance.")
    elif spread.degrees_of_freedom < 5:
      lines.append(
        f"{name}: the standard deviation of {spread.deviation:.2f} comes from few repeated runs "
        f"({_count(spread.degrees_of_freedom, 'degree')} of freedom) and may be far off."
      )
  return lines


def correlation_text(found: RankCorrelation | None) -> str:
  if found is None:
    return "fewer than three rows have a score here and in the paper"
  if found.spearman is None:
    return f"undefined: all scores are equal (n = {found.n})"
  about = "" if found.exact else ", from sampled permutations"
  return (
    f"Spearman {number(found.spearman, signed=True)} (p {p_text(found.spearman_p)}), "
    f"Kendall {number(found.kendall, signed=True)} (p {p_text(found.kendall_p)}), n = {found.n}{about}"
  )


def p_text(p: float) -> str:
  return f"= {p:.3f}" if p >= 0.0005 else "< 0.001"


def _short(table: ComparedTable) -> str:
  return f"Table {table.number}" if table.number else table.title


def _count(number: int, noun: str) -> str:
  return f"{number} {noun}" + ("" if number == 1 else "s")


def _joined(names: Iterable[str]) -> str:
  names = list(names)
  return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def _some(names: Sequence[str]) -> str:
  more = len(names) - _NAMED
  return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
