"""The report as one self-contained HTML page: no network, no script, no font."""

from __future__ import annotations

import html
import re
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from t5like.ablations.report.columns import GROUP_NAMES
from t5like.ablations.report.comparison import (
  Cell,
  ComparedRow,
  ComparedTable,
  TableComparison,
  beyond_band,
)
from t5like.ablations.report.conclusions import CheckedConclusion
from t5like.ablations.report.costs import EnergyAssumptions, assumptions_text, recipe_costs, total_cost
from t5like.ablations.report.examples import TEXT
from t5like.ablations.report.plots import MISSING, difference_plot, loss_plot, mean_curve, number, pretty, series_style
from t5like.ablations.report.statistics import mean
from t5like.ablations.report.summary import Summary, p_text, summarize
from t5like.ablations.report.text import (
  COST_HEADER,
  ORDER_NOTE,
  conclusion_text,
  cost_line,
  csv_text,
  evidence_text,
  order_table,
  seeds_text,
  to_decide_text,
)
from t5like.ablations.tables import BASELINE_TASKS

_SIGNS = {"reproduced": "✓", "partly reproduced": "≈", "undecided": "?", "not reproduced": "✗", "not run": "–"}


def page(comparison: TableComparison, assumptions: EnergyAssumptions) -> str:
  summary = summarize(comparison)
  sections = [("summary", "Summary", _summary(comparison, summary))]
  sections += [(f"table-{table.number}", table.heading, _table_section(table)) for table in comparison.tables]
  sections += [
    ("objectives", "Examples of the objectives", _examples(comparison)),
    ("cost", "Cost", _costs(comparison, assumptions)),
    ("tasks", "Scores by task", _tasks(comparison)),
    ("method", "Method, and how to read this", _method(comparison)),
  ]
  sections = [section for section in sections if section[2]]
  links = "".join(f'<li><a href="#{name}">{_escaped(_link(heading))}</a></li>' for name, heading, _ in sections)
  body = "".join(
    f'<section id="{name}" aria-labelledby="{name}-heading"><h2 id="{name}-heading">{_escaped(heading)}</h2>{content}'
    "</section>\n"
    for name, heading, content in sections
  )
  # The content security policy in the page's head enforces it: nothing is fetched, nothing runs.
  skeleton, style = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.html", "page.css"))
  return string.Template(skeleton).substitute(title=_escaped(summary.title), style=style, links=links, sections=body)


def _link(heading: str) -> str:
  return heading.partition(":")[0] if heading.startswith("Table ") else heading.partition(",")[0]


# --- summary ---------------------------------------------------------------------------------------------------------


def _summary(comparison: TableComparison, summary: Summary) -> str:
  parts = [f'<p class="lead">{_escaped(summary.scope)}</p>', _list([*summary.findings, *summary.cautions])]
  if summary.conclusions:
    parts += ["<h3>The paper's conclusions, checked</h3>", _conclusions(summary)]
  parts += ["<h3>The paper's ranking of rows, checked</h3>", _rankings(comparison)]
  if comparison.measures:
    parts += ["<h3>The order of rows, by measure</h3>", _orders(comparison)]
  if summary.missing:
    parts += ["<h3>Missing runs</h3>", _list(summary.missing)]
  return "".join(parts)


def _conclusions(summary: Summary) -> str:
  items = [
    f'<li><span class="verdict {checked.verdict.replace(" ", "-")}">{_SIGNS[checked.verdict]} {checked.verdict}</span>'
    f'<span>{_escaped(checked.conclusion.text)} <span class="faint">(Table {checked.conclusion.table})</span><br>'
    f'<span class="note">{"<br>".join(map(_escaped, _details(checked)))}</span></span></li>'
    for checked in summary.conclusions
  ]
  note = (
    "A comparison is one pair of rows in one group; clearly: by more than two standard deviations. Reproduced: at "
    "least three in four hold and none is clearly against; not reproduced: fewer than half hold; partly: in between; "
    "undecided: no difference is clear."
  )
  return f'<ul class="claims">{"".join(items)}</ul><p class="note">{note}</p>'


def _details(checked: CheckedConclusion) -> list[str]:
  evidence, to_decide = evidence_text(checked), to_decide_text(checked)
  lines = [conclusion_text(checked), evidence, f"To decide: {to_decide}." if to_decide else ""]
  return [line for line in lines if line]


def _orders(comparison: TableComparison) -> str:
  header, rows = order_table(comparison)
  heads = "".join(f'<th scope="col">{_escaped(name)}</th>' for name in header)
  return _scroll("Order of rows by measure", heads, [_plain_row(row) for row in rows], _escaped(ORDER_NOTE), "dense")


def _rankings(comparison: TableComparison) -> str:
  """Returns a table of the rank correlations of all tables."""
  above = '<th scope="col" rowspan="2">rows of</th>' + "".join(
    f'<th scope="colgroup" colspan="3" class="group">{GROUP_NAMES[group]}</th>' for group in comparison.groups
  )
  below = '<th scope="col" class="first">Spearman</th><th scope="col">Kendall</th><th scope="col">n</th>'
  listed = [(f"Table {table.number}", table.correlations) for table in comparison.tables if table.number]
  rows = []
  overall = [("All recipes", comparison.correlations)] if any(comparison.correlations.values()) else []
  for heading, found in [*listed, *overall]:
    cells = [f'<th scope="row">{_escaped(heading)}</th>']
    for group in comparison.groups:
      one = found.get(group)
      if one is None or one.spearman is None:
        n = MISSING if one is None else one.n
        cells.append(f'<td class="first missing">{MISSING}</td><td class="missing">{MISSING}</td><td>{n}</td>')
        continue
      cells += [
        f'<td class="first">{number(one.spearman, signed=True)} <small>p {p_text(one.spearman_p)}</small></td>'
        f"<td>{number(one.kendall, signed=True)} <small>p {p_text(one.kendall_p)}</small></td><td>{one.n}</td>"
      ]
    rows.append(f"<tr>{''.join(cells)}</tr>")
  caption = (
    "1 is the paper's own ranking, −1 its reverse. p is the share of all permutations of the n rows that agree at "
    "least as well (one-sided; exact up to ten rows, from random permutations beyond). With three or four rows p "
    "cannot be small: 1 in 6 or 1 in 24 at best."
  )
  heads = f"{above}</tr><tr>{below * len(comparison.groups)}"
  kind = "dense" if len(comparison.groups) > 2 else ""
  return _scroll("Rank correlation with the paper", heads, rows, caption, kind)


# --- a table ---------------------------------------------------------------------------------------------------------


def _table_section(table: ComparedTable) -> str:
  parts = [_scores(table)]
  plots = [(group, difference_plot(table, group)) for group in table.groups]
  drawn = [f"<div><h4>{GROUP_NAMES[group]}</h4>{plot}</div>" for group, plot in plots if plot]
  if drawn:
    parts.append(
      f'<figure><div class="plots">{"".join(drawn)}</div><figcaption class="key">{_KEY_OURS} ours, with a tick for '
      f"each seed; {_KEY_PAPER} the paper's. Shaded: within two standard deviations of the baseline. The axis is "
      "linear around 0 and logarithmic beyond.</figcaption></figure>"
    )
  curves = loss_plot(table)
  if curves:
    parts.append(
      f'<figure><h3>Training loss</h3><div class="curves">{curves}{_legend(table)}</div><figcaption>Bold: the mean of '
      "the seeds, thin: each seed; the number is the final mean. Losses of objectives with different targets are not "
      "comparable.</figcaption></figure>"
    )
  return "".join(parts)


_KEY_OURS = '<svg viewBox="0 0 14 12" aria-hidden="true"><circle class="ours" cx="7" cy="6" r="4.5"/></svg>'
_KEY_PAPER = (
  '<svg viewBox="0 0 14 12" aria-hidden="true"><path class="paper" d="M7 .8l5.2 5.2l-5.2 5.2l-5.2 -5.2z"/></svg>'
)


def _scores(table: ComparedTable) -> str:
  above = '<th scope="col" rowspan="2">row</th>' + "".join(
    f'<th scope="colgroup" colspan="5" class="group">{GROUP_NAMES[group]}</th>' for group in table.groups
  )
  below = '<th scope="col" class="first">ours</th><th scope="col" class="seeds" aria-label="SD over seeds">±</th>'
  below += '<th scope="col">paper</th><th scope="col">Δ ours</th><th scope="col">Δ paper</th>'
  heads = f'{above}<th scope="col" rowspan="2" class="first">seeds</th></tr><tr>{below * len(table.groups)}'
  rows = []
  for row in table.rows:
    kinds = " ".join(k for k, holds in (("baseline", row.is_baseline), ("reference", row.reference)) if holds)
    cells = "".join(_score_cells(row.cells[group]) for group in table.groups)
    seeds = seeds_text(row)
    title = f' title="{_escaped(row.error)}"' if row.error else ""
    rows.append(
      f'<tr class="{kinds}" data-recipe="{_escaped(row.recipe)}"><th scope="row">{_escaped(pretty(row.name))}'
      f'{_baseline_mark(row)}</th>{cells}<td class="first"{title}>{seeds}</td></tr>'
    )
  missing = [GROUP_NAMES[group] for group in table.not_run]
  caption = (
    "Bold: within two standard deviations of the best in its column (a tie with the best). ±: standard deviation of "
    "the row's own seeds. Δ: difference from the baseline in standard deviations; bold if more than two."
  )
  caption += f" Not run: {', '.join(missing)}." if missing else ""
  return _scroll(table.heading, heads, rows, caption, "dense" if len(table.groups) > 2 else "")


def _baseline_mark(row: ComparedRow) -> str:
  return ' <span class="faint">(baseline)</span>' if row.is_baseline and "aseline" not in row.name else ""


def _score_cells(cell: Cell) -> str:
  deviation = "" if cell.deviation is None else f"± {cell.deviation:.2f}"
  return (
    f'<td class="first{" missing" * (cell.mean is None)}">{_bold(number(cell.mean), cell.tie)}</td>'
    f'<td class="seeds">{deviation}</td><td>{_bold(number(cell.paper), cell.paper_tie)}</td>'
    f"{_difference(cell.in_spreads)}{_difference(cell.paper_in_spreads)}"
  )


def _difference(in_spreads: float | None) -> str:
  kind = "missing" if in_spreads is None else "clear" if beyond_band(in_spreads) else ""
  return f'<td class="{kind}">{number(in_spreads, 1, signed=True)}</td>'


def _legend(table: ComparedTable) -> str:
  items = []
  for index, row in enumerate(table.rows):
    curve = mean_curve(row.results)
    if curve:
      line = f'<svg viewBox="0 0 36 12" aria-hidden="true"><path {series_style(index)} d="M1 6H35"/></svg>'
      items.append(f'<li>{line}{_escaped(pretty(row.name))}<span class="end">{curve[-1][1]:.3f}</span></li>')
  return f'<ul class="legend">{"".join(items)}</ul>'


# --- objectives, costs, tasks ----------------------------------------------------------------------------------------


def _examples(comparison: TableComparison) -> str:
  shown = comparison.data.examples
  if not shown:
    return ""
  boxes = [
    f"<section><h3>{_escaped(example.objective)}</h3><dl><dt>inputs</dt><dd>{_with_sentinels(example.inputs)}</dd>"
    f"<dt>targets</dt><dd>{_with_sentinels(example.targets)}</dd></dl></section>"
    for example in shown
  ]
  return (
    f"<p>For readability each word is a token; models see word pieces. The text: “{_escaped(TEXT)}”</p>"
    f'<div class="examples">{"".join(boxes)}</div>'
  )


def _with_sentinels(text: str) -> str:
  marked = re.sub(r"&lt;(\w)&gt;", r"<b>&lt;\1&gt;</b>", _escaped(text))
  return marked or '<span class="faint">nothing</span>'


def _costs(comparison: TableComparison, assumptions: EnergyAssumptions) -> str:
  results = comparison.data.results
  lines = [cost_line(cost) for cost in recipe_costs(results, assumptions)]
  rows = [_plain_row(line) for line in lines] + [_plain_row(cost_line(total_cost(results, assumptions)), "total")]
  heads = "".join(f'<th scope="col">{_escaped(name)}</th>' for name in COST_HEADER)
  devices = sorted({(cost.device, cost.devices) for result in results for cost in (result.cost["total"],)})
  caption = (
    f"All seeds together; a recipe in several tables counts once. Hours are device-hours, on "
    f"{_escaped(', '.join(f'{count} × {device}' for device, count in devices))}. FLOPs are model FLOPs, "
    "forward and backward."
  )
  note = _escaped(assumptions_text(results, assumptions))
  return _scroll("Cost of each recipe", heads, rows, caption) + f'<p class="note">{note}</p>'


def _tasks(comparison: TableComparison) -> str:
  """Returns a table of validation losses and all metrics, averaged over seeds, with the paper's baseline if known."""
  results = comparison.data.results
  columns = list(
    dict.fromkeys((t, m) for r in results for t, metrics in r.tasks.items() for m in metrics if m != "best_step")
  )
  heads = '<th scope="col">recipe</th><th scope="col">validation loss</th>' + "".join(
    f'<th scope="col">{_escaped(task)}<br><small class="faint">{_escaped(metric)}</small></th>'
    for task, metric in columns
  )
  rows = []
  for recipe in dict.fromkeys(result.recipe for result in results):
    runs = [result for result in results if result.recipe == recipe]
    values = [_mean(r.tasks.get(task, {}).get(metric) for r in runs) for task, metric in columns]
    rows.append(_plain_row([recipe, number(_mean(r.validation_loss for r in runs), 3), *map(number, values)]))
  known = [_paper_baseline(task, metric) for task, metric in columns]
  if any(value is not None for value in known):
    rows.append(_plain_row(["The paper's baseline", MISSING, *map(number, known)], "reference"))
  caption = (
    "Metrics at each task's best checkpoint; means over seeds. Losses of different objectives are not comparable."
  )
  return _scroll("Scores of each task", heads, rows, caption)


def _mean(values: Iterable[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return mean(known) if known else None


def _paper_baseline(task: str, metric: str) -> float | None:
  """Returns the paper's score of its baseline on a task; versions (glue_cola_v002) are ignored."""
  return BASELINE_TASKS.get(re.sub(r"_v\d+$", "", task), {}).get(metric)


# --- method ----------------------------------------------------------------------------------------------------------


def _method(comparison: TableComparison) -> str:
  data = comparison.data
  spreads = [
    f"{GROUP_NAMES[group]}: {spread.deviation:.3f} points ({spread.degrees_of_freedom} degrees of freedom)"
    for group, spread in comparison.spreads.items()
    if spread
  ]
  settings = {key: value for key, value in data.sweep.items() if value and key != "recipes"}
  facts = [
    "Our standard deviations are those of the residuals of recipe and seed effects, over all recipes with two or more "
    "seeds: a seed reads the same data in all recipes. "
    f"{'; '.join(spreads) or 'None could be computed'}. The T5 paper's are those of ten runs of its baseline; other "
    "papers have none.",
    "A tie is a score within two standard deviations of the best in its column, as in the paper. The standard "
    "deviation is that of one run; a mean of several seeds varies less, so the band is conservative.",
    f"Versions of t5like: {', '.join(sorted({r.version for r in data.results}))}. Runs finished from "
    f"{min(r.finished for r in data.results)} to {max(r.finished for r in data.results)}.",
    "The sweep: " + "; ".join(f"{key} {_plain(value)}" for key, value in settings.items()) + ".",
  ]
  parts = [_list(facts)]
  commands = [command for result in data.results for command in result.commands]
  if commands:
    parts.append(
      f"<details><summary>Commands of all runs</summary><pre>{_escaped(chr(10).join(commands))}</pre></details>"
    )
  link = f"data:text/csv;charset=utf-8,{quote(csv_text(comparison))}"
  parts.append(f'<p class="download"><a download="ablations.csv" href="{link}">All scores as a CSV file</a></p>')
  return "".join(parts)


def _plain(value: object) -> str:
  return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# --- HTML ------------------------------------------------------------------------------------------------------------


def _escaped(text: object) -> str:
  return html.escape(str(text))


def _bold(text: str, bold: bool) -> str:
  return f"<b>{text}</b>" if bold else text


def _list(lines: Iterable[str]) -> str:
  items = "".join(f"<li>{_escaped(line)}</li>" for line in lines)
  return f"<ul>{items}</ul>" if items else ""


def _plain_row(fields: Sequence[str], kind: str = "") -> str:
  first, *rest = map(_escaped, fields)
  first = re.sub(r"([/_])", r"\1<wbr>", first)  # allow line breaks in the long names of recipes
  attribute = f' class="{kind}"' if kind else ""
  return (
    f'<tr{attribute}><th scope="row" class="recipe">{first}</th>{"".join(f"<td>{field}</td>" for field in rest)}</tr>'
  )


def _scroll(label: str, heads: str, rows: Sequence[str], caption: str, kind: str = "") -> str:
  """Returns a table in a box that scrolls (also by keyboard), so that the page does not scroll sideways."""
  table = f'<table class="{kind}" aria-label="{_escaped(label)}">'
  return (
    f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{_escaped(label)}">'
    f"{table}<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    f"<figcaption>{caption}</figcaption></figure>"
  )
