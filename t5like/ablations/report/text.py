"""The report as Markdown and CSV, and the short table for a README."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from t5like.ablations.report.columns import GROUP_NAMES, LOWER_IS_BETTER
from t5like.ablations.report.comparison import Cell, ComparedRow, ComparedTable, TableComparison
from t5like.ablations.report.conclusions import MOST_SEEDS, CheckedConclusion, PairEvidence
from t5like.ablations.report.costs import EnergyAssumptions, RecipeCost, assumptions_text, recipe_costs, total_cost
from t5like.ablations.report.measures import ALL, OrderAgreement
from t5like.ablations.report.plots import MISSING, number, pretty
from t5like.ablations.report.statistics import TIE_DEVIATIONS
from t5like.ablations.report.summary import correlation_text, summarize
from t5like.planning.run_card import large

# --- numbers ---------------------------------------------------------------------------------------------------------


def score(cell: Cell) -> str:
  """Formats the mean over seeds and their standard deviation."""
  return number(cell.mean) + (f" ± {cell.deviation:.2f}" if cell.deviation is not None else "")


def seeds_text(row: ComparedRow) -> str:
  if not row.results:
    return "failed" if row.error else "not run" if row.requested else "not requested"
  done = len(row.results)
  return f"{done} of {done + len(row.missing_seeds)}" if row.missing_seeds else str(done)


def conclusion_text(checked: CheckedConclusion) -> str:
  """Describes in how many comparisons a conclusion holds, in our results and in the paper's own."""
  ours, paper = checked.ours, checked.paper
  if not ours.of:
    return f"not run (the paper's own: {paper.holds} of {paper.of})"
  clear = f", {ours.holds_clearly} clearly" if ours.holds_clearly else ""
  against = f", {ours.fails_clearly} clearly against" if ours.fails_clearly else ""
  return f"{ours.holds} of {ours.of} comparisons{clear}{against} (the paper's own: {paper.holds} of {paper.of})"


def evidence_text(checked: CheckedConclusion) -> str:
  """Describes the largest and the smallest of our differences, positive if in the direction of the paper."""
  pairs = sorted(checked.evidence, key=lambda pair: pair.difference)
  shown = dict.fromkeys([pairs[-1], pairs[0]]) if pairs else {}
  return "; ".join(
    f"{GROUP_NAMES[pair.group]}: {_subtraction(pair)} {number(pair.difference, signed=True)}"
    + ("" if pair.error is None else f" (standard error {pair.error:.2f})")
    for pair in shown
  )


def _subtraction(pair: PairEvidence) -> str:
  order = (pair.worse, pair.better) if pair.group in LOWER_IS_BETTER else (pair.better, pair.worse)
  return " minus ".join(order)


def to_decide_text(checked: CheckedConclusion) -> str:
  """Describes what would decide a conclusion that is not decided; '' if it is."""
  if not checked.ours.of:
    return "run the table"
  if checked.verdict not in ("undecided", "partly reproduced") or not checked.open_pairs:
    return ""
  pair = checked.open_pairs[0]
  if pair.error is None:
    return "two or more seeds"
  if pair.seeds > MOST_SEEDS:
    return f"a larger scale: even the largest open difference needs {pair.seeds:,} seeds"
  about = f"{GROUP_NAMES[pair.group]} of {pair.better} and {pair.worse}"
  if abs(pair.difference) > TIE_DEVIATIONS * pair.error:
    return (
      f"a larger scale: the difference in {about} is not chance, but below {TIE_DEVIATIONS:g} standard deviations of a "
      "run, whatever the number of seeds"
    )
  return f"{pair.seeds} seeds tell the difference in {about} from chance, if it is the one measured so far"


# --- CSV -------------------------------------------------------------------------------------------------------------


def csv_text(comparison: TableComparison) -> str:
  """Returns one line for each row of each table in each group, run or not; empty fields are missing values."""
  out = io.StringIO()
  writer = csv.writer(out, lineterminator="\n")
  writer.writerow(
    "table row recipe group mean seeds_deviation seeds scores difference difference_in_spreads spread tie "
    "paper paper_difference paper_difference_in_spreads paper_spread paper_tie in_table".split()
  )
  for table in comparison.tables:
    for row in table.rows:
      for group, cell in row.cells.items():
        each = " ".join(f"{seed}:{value:.6g}" for seed, value in cell.seeds.items())
        ours = cell.mean, cell.deviation, len(cell.seeds), each, cell.difference, cell.in_spreads, cell.spread
        paper = cell.paper, cell.paper_difference, cell.paper_in_spreads, cell.paper_spread
        fields = [table.number, row.name, row.recipe, group, *ours, _flag(cell.tie, cell.mean), *paper]
        writer.writerow([_field(v) for v in (*fields, _flag(cell.paper_tie, cell.paper), int(not row.reference))])
  return out.getvalue()


def _flag(value: bool, known: float | None) -> int | None:
  return None if known is None else int(value)


def _field(value: object) -> object:
  return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


# --- Markdown --------------------------------------------------------------------------------------------------------


def markdown(comparison: TableComparison, assumptions: EnergyAssumptions) -> str:
  summary = summarize(comparison)
  blocks = [f"# {summary.title}", summary.scope]
  blocks.append(_bullets([*summary.findings, *summary.missing, *summary.cautions]))
  if summary.conclusions:
    rows = [
      [c.conclusion.table, c.conclusion.text, c.verdict, conclusion_text(c), evidence_text(c), to_decide_text(c)]
      for c in summary.conclusions
    ]
    header = ["table", "claim", "verdict", "comparisons", "evidence", "to decide"]
    blocks += ["## The paper's conclusions, checked", _table(header, rows)]
  if comparison.measures:
    blocks += ["## The order of rows, by measure", _table(*order_table(comparison), left=1), ORDER_NOTE]
  blocks += [
    "Bold: within two standard deviations of the best in its column, as in the paper. Δ: difference from the "
    "baseline in standard deviations: of our seeds for ours, of the paper's runs for the paper's."
  ]
  for table in comparison.tables:
    blocks += [f"## {table.heading}", _table(*_score_table(table), left=1), _bullets(_correlations(table))]
  shown = comparison.data.examples
  if shown:
    rows = [[example.objective, example.inputs, example.targets] for example in shown]
    blocks += ["## Examples of the objectives", _table(["objective", "inputs", "targets"], rows)]
  blocks += ["## Cost", _table(*_cost_table(comparison, assumptions), left=1)]
  blocks.append(assumptions_text(comparison.data.results, assumptions))
  return "\n\n".join(block for block in blocks if block) + "\n"


ORDER_NOTE = (
  "Spearman's rank correlation with the paper's column and a 95% bootstrap interval over paired seeds; then how many "
  "of the paper's clear differences (pairs of rows more than two of its standard deviations apart, or all pairs if it "
  "has none) have the same direction, and how many are clearly reversed."
)


def order_table(comparison: TableComparison) -> tuple[list[str], list[list[str]]]:
  """Returns header and rows of the agreement of every measure with the paper, by table."""
  numbers = [table.number for table in comparison.tables if table.number]
  rows = []
  for n in [*numbers, ALL]:
    found = [measure.agreements[n] for measure in comparison.measures]
    if any(one.correlation for one in found):
      rows.append([f"Table {n}" if n else "All recipes", *map(_order_cell, found)])
  return ["rows of", *(measure.name for measure in comparison.measures)], rows


def _order_cell(found: OrderAgreement) -> str:
  if found.correlation is None or found.correlation.spearman is None:
    return MISSING
  low, high = found.interval or (None, None)
  interval = "" if low is None else f" [{number(low, signed=True)}, {number(high, signed=True)}]"
  reversed_ = f", {found.reversed_clearly} clearly reversed" if found.reversed_clearly else ""
  return f"{number(found.correlation.spearman, signed=True)}{interval}; {found.same} of {found.clear}{reversed_}"


def readme_table(comparison: TableComparison) -> str:
  """Returns the rows of all tables with our scores and the paper's, and a line of rank correlations after each."""
  groups = comparison.groups
  header = ["", *(f"{GROUP_NAMES[g]} {side}" for g in groups for side in ("ours", "paper"))]
  rows = []
  for table in comparison.tables:
    rows.append([f"**{table.heading}**", *[""] * (2 * len(groups))])
    for row in table.own_rows:
      cells = [row.cells.get(group, Cell({}, None)) for group in groups]
      sides = [text for c in cells for text in (_bold(score(c), c.tie), _bold(number(c.paper), c.paper_tie))]
      rows.append([pretty(row.name), *sides])
    order = [_short_correlation(table, group) for group in groups]
    rows.append(["*rank correlation (Spearman, p)*", *(text for pair in order for text in (pair, ""))])
  return _table(header, rows, left=1)


def _short_correlation(table: ComparedTable, group: str) -> str:
  found = table.correlations.get(group)
  if found is None or found.spearman is None:
    return MISSING
  return f"*{number(found.spearman, signed=True)}, {found.spearman_p:.2g}, n = {found.n}*"


def _score_table(table: ComparedTable) -> tuple[list[str], list[list[str]]]:
  header = ["row"]
  for group in table.groups:
    name = GROUP_NAMES[group]
    header += [f"{name} ours", "paper", "Δ ours", "Δ paper"]
  rows = []
  for row in table.rows:
    line = [f"*{row.name}*" if row.reference else pretty(row.name)]
    for group in table.groups:
      cell = row.cells[group]
      line += [_bold(score(cell), cell.tie), _bold(number(cell.paper), cell.paper_tie)]
      line += [number(cell.in_spreads, 1, signed=True), number(cell.paper_in_spreads, 1, signed=True)]
    rows.append([*line, seeds_text(row)])
  return [*header, "seeds"], rows


def _correlations(table: ComparedTable) -> list[str]:
  return [
    f"Rank correlation, {GROUP_NAMES[group]}: {correlation_text(found)}."
    for group, found in table.correlations.items()
    if table.number
  ]


def cost_line(cost: RecipeCost) -> list[str]:
  return [
    cost.recipe,
    str(cost.runs),
    large(cost.total.model_flops),
    large(cost.total.tokens),
    number(cost.hours("pretraining"), 3),
    number(cost.hours("finetuning"), 3),
    number(cost.hours("total"), 3),
    number(cost.kilowatt_hours, 3),
    number(cost.kilograms, 3),
  ]


# Hours are device-hours.
COST_HEADER = ["recipe", "runs", "model FLOPs", "tokens", "pre-train h", "fine-tune h", "total h", "kWh", "kg CO2e"]


def _cost_table(comparison: TableComparison, assumptions: EnergyAssumptions) -> tuple[list[str], list[list[str]]]:
  results = comparison.data.results
  costs = [*recipe_costs(results, assumptions), total_cost(results, assumptions)]
  return COST_HEADER, [cost_line(cost) for cost in costs]


def _bold(text: str, bold: bool) -> str:
  return f"**{text}**" if bold else text


def _bullets(lines: Iterable[str]) -> str:
  return "\n".join(f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[object]], left: int = 99) -> str:
  """Formats a Markdown table; the first `left` columns are text, the others numbers."""
  rules = [":---" if column < left else "---:" for column in range(len(header))]
  lines = [header, rules, *rows]
  return "\n".join(f"| {' | '.join(str(field).replace('|', chr(92) + '|') for field in line)} |" for line in lines)
