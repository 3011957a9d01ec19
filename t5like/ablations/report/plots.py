"""The report's plots, as inline SVG: no library, no script; colors come from the page's light or dark style.

Plots are 400 units wide and about as many pixels, so that text has the same size on phones and desktops.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

from t5like.ablations.report.columns import GROUP_NAMES
from t5like.ablations.report.comparison import Cell, ComparedRow, ComparedTable
from t5like.ablations.report.statistics import TIE_DEVIATIONS, mean
from t5like.ablations.sweep.results import Result

_WIDTH = 400
_COLORS = 5  # in the page's style; further rows reuse them with dashes
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
_LABEL_CHARACTERS = 21
MISSING = "–"
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 2, signed: bool = False) -> str:
  """Formats a number with a typographic minus and, if `signed`, a plus for positive values."""
  if value is None:
    return MISSING
  value = round(value, digits) + 0.0  # no -0.00
  text = f"{value:+.{digits}f}" if signed and value else f"{value:.{digits}f}"
  return text.replace("-", "−")


def pretty(name: str) -> str:
  """Formats powers with superscripts: 2^29 becomes 2²⁹."""
  return re.sub(r"\^(\d+)", lambda power: power[1].translate(_SUPERSCRIPTS), name)


# --- differences from the baseline ---------------------------------------------------------------------------------

_LABELS, _RIGHT, _TOP, _ROW, _AXIS = 142, 12, 8, 28, 38
_TICKS = (2, 10, 50, 200, 1000)


def difference_plot(table: ComparedTable, group: str) -> str:
  """Plots each row's distance from the baseline in standard deviations, ours and the paper's; '' if ours are unknown.

  Distances range from a tenth to fifty: the axis is linear near 0 and logarithmic beyond (arcsinh).
  """
  rows = [row for row in table.rows if not row.is_baseline]
  known = [distance for row in rows for distance in _distances(row.cells[group])]
  if not any(row.cells[group].in_spreads is not None for row in rows):
    return ""
  low = math.asinh(1.25 * min(-1.5 * TIE_DEVIATIONS, *known))
  high = math.asinh(1.25 * max(1.5 * TIE_DEVIATIONS, *known))
  width = _WIDTH - _LABELS - _RIGHT
  height = _TOP + _ROW * len(rows) + _AXIS

  def x(deviations: float) -> float:
    return _LABELS + width * (math.asinh(deviations) - low) / (high - low)

  bottom = _TOP + _ROW * len(rows)
  parts = [_band(x(-TIE_DEVIATIONS), x(TIE_DEVIATIONS), bottom)]
  for tick in (t for t in (0, *_TICKS, *(-t for t in _TICKS)) if low < math.asinh(t) < high):
    kind = "zero" if tick == 0 else "grid"
    parts.append(f'<line class="{kind}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{bottom}"/>')
    parts.append(_text(x(tick), bottom + 14, number(tick, 0, signed=True), "middle"))
  parts.append(_text(_LABELS + width / 2, bottom + 31, "standard deviations from the baseline", "middle"))
  for index, row in enumerate(rows):
    parts += _difference_marks(row, row.cells[group], x, _TOP + _ROW * (index + 0.5))
  name = f"t{table.number}-{group}"
  title = f"{table.heading}: {GROUP_NAMES[group]}, differences from the baseline"
  return _svg(name, height, title, "; ".join(_describe_row(row, group) for row in rows), parts)


def _distances(cell: Cell) -> list[float]:
  """Returns all distances that are drawn for a row."""
  known = [cell.paper_in_spreads] if cell.paper_in_spreads is not None else []
  return known + [_seed_distance(cell, score) for score in cell.seeds.values() if cell.in_spreads is not None]


def _seed_distance(cell: Cell, score: float) -> float:
  return (score - cell.baseline) / cell.spread


def _band(left: float, right: float, bottom: float) -> str:
  return f'<rect class="band" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{bottom - _TOP:.1f}"/>'


def _difference_marks(row: ComparedRow, cell: Cell, x, y: float) -> list[str]:
  parts = _label(pretty(row.name), y)
  if cell.in_spreads is not None:
    for score in cell.seeds.values():
      at = x(_seed_distance(cell, score))
      parts.append(f'<line class="seed" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 6:.1f}" y2="{y + 6:.1f}"/>')
    parts.append(f'<circle class="ours" cx="{x(cell.in_spreads):.1f}" cy="{y:.1f}" r="4.5"/>')
  else:
    parts.append(_text(_WIDTH - _RIGHT, y + 4, "ours: missing", "end", "faint"))
  if cell.paper_in_spreads is not None:
    at = x(cell.paper_in_spreads)
    parts.append(f'<path class="paper" d="M{at:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"/>')
  return parts


def _label(name: str, y: float) -> list[str]:
  """Returns the label of a row, in at most two lines, left of the plot."""
  lines = [name]
  if len(name) > _LABEL_CHARACTERS and " " in name:
    cuts = [match.start() for match in re.finditer(" ", name)]
    cut = min(cuts, key=lambda at: abs(at - len(name) / 2) - 6 * (name[at - 1] == ","))  # preferably after a comma
    lines = [name[:cut], name[cut + 1 :]]
  first = y + 4 - 6 * (len(lines) - 1)
  return [_text(_LABELS - 10, first + 12 * i, line, "end") for i, line in enumerate(lines)]


def _describe_row(row: ComparedRow, group: str) -> str:
  cell = row.cells[group]
  ours = "missing" if cell.in_spreads is None else f"{cell.in_spreads:+.1f}"
  paper = "not given" if cell.paper_in_spreads is None else f"{cell.paper_in_spreads:+.1f}"
  return f"{pretty(row.name)}: ours {ours}, the paper {paper}"


# --- loss curves -----------------------------------------------------------------------------------------------------

_LEFT, _PLOT_HEIGHT, _LOSS_AXIS = 40, 220, 38
_SETTLED = 0.1  # share of steps that the y range ignores: losses fall steeply there


def series_style(index: int) -> str:
  """Returns the attributes (color and dashes) of the line of a table's row."""
  dash = _DASHES[index // _COLORS % len(_DASHES)]
  return f'class="line c{index % _COLORS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def loss_plot(table: ComparedTable) -> str:
  """Plots training loss by step: bold for each row's mean, thin for each seed; '' without any curve."""
  rows = [(index, row) for index, row in enumerate(table.rows) if any(run.curve for run in row.results)]
  points = [point for _, row in rows for run in row.results for point in run.curve if math.isfinite(point[1])]
  if not points:
    return ""
  last = max(step for step, _ in points)
  settled = [loss for step, loss in points if step >= _SETTLED * last]
  low, high = min(settled), max(settled)
  margin = 0.06 * (high - low) or 0.5
  low, high = low - margin, high + margin
  bottom, width = _TOP + _PLOT_HEIGHT, _WIDTH - _LEFT - _RIGHT

  def x(step: float) -> float:
    return _LEFT + width * step / max(last, 1)

  def y(loss: float) -> float:
    return _TOP + _PLOT_HEIGHT * (high - loss) / (high - low)

  parts = [_loss_axes(x, y, last, low, high, bottom)]
  name = f"t{table.number}-loss"
  parts.append(f'<clipPath id="{name}-frame"><rect x="{_LEFT}" y="{_TOP}" width="{width}" height="{_PLOT_HEIGHT}"/>')
  parts.append(f'</clipPath><g clip-path="url(#{name}-frame)">')
  for index, row in rows:
    style = series_style(index)
    if len(row.results) > 1:
      parts += [f'<path {style} data-seed="{r.seed}" d="{_path(r.curve, x, y)}"/>' for r in row.results if r.curve]
    parts.append(f'<path {style} data-mean="1" d="{_path(mean_curve(row.results), x, y)}"/>')
  parts.append("</g>")
  title = f"{table.heading}: training loss by step"
  ends = "; ".join(f"{pretty(row.name)} ends at {mean_curve(row.results)[-1][1]:.2f}" for _, row in rows)
  return _svg(name, bottom + _LOSS_AXIS, title, ends, parts)


def mean_curve(results: Sequence[Result]) -> list[tuple[int, float]]:
  """Returns the mean over seeds at the steps that all of them have; the first seed's curve if they share none."""
  curves = [dict(run.curve) for run in results if run.curve]
  if not curves:
    return []
  shared = [step for step in curves[0] if all(step in curve for curve in curves)]
  return [(step, mean([curve[step] for curve in curves])) for step in shared] or sorted(curves[0].items())


def _loss_axes(x, y, last: int, low: float, high: float, bottom: float) -> str:
  parts = []
  for loss in nice_ticks(low, high, 5):
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}"/>')
    parts.append(_text(_LEFT - 6, y(loss) + 4, f"{loss:g}", "end"))
  for step in nice_ticks(0, last, 4):
    anchor = "end" if x(step) > _WIDTH - 30 else "middle"
    parts.append(_text(x(step), bottom + 16, f"{step:,.0f}", anchor))
  parts.append(f'<line class="zero" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
  parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 32, "pre-training step", "middle"))
  return "".join(parts)


def _path(curve: Sequence[tuple[int, float]], x, y) -> str:
  """Returns the path of a curve, with gaps at losses that are not finite."""
  drawn, pen = [], "M"
  for step, loss in curve:
    if not math.isfinite(loss):
      pen = "M"
      continue
    drawn.append(f"{pen}{x(step):.1f} {y(loss):.1f}")
    pen = "L"
  return "".join(drawn)


def nice_ticks(low: float, high: float, count: int) -> list[float]:
  """Returns about `count` round numbers from low to high."""
  raw = (high - low) / count if high > low else 1.0
  power = 10.0 ** math.floor(math.log10(raw))
  step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * (1 - 1e-9))
  first = math.ceil(low / step - 1e-9)
  return [round(step * i, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


# --- SVG -------------------------------------------------------------------------------------------------------------


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
  attributes = f' class="{kind}"' if kind else ""
  return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attributes}>{html.escape(text)}</text>'


def _svg(name: str, height: float, title: str, description: str, parts: Sequence[str]) -> str:
  return (
    f'<svg class="plot" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-labelledby="{name}-title {name}-desc">'
    f'<title id="{name}-title">{html.escape(title)}</title><desc id="{name}-desc">{html.escape(description)}</desc>'
    f"{''.join(parts)}</svg>"
  )
