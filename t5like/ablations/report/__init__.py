"""The report of a sweep as an HTML page, Markdown and CSV, from its results and the paper's tables."""

from __future__ import annotations

from pathlib import Path

from t5like.ablations.report.comparison import compare
from t5like.ablations.report.costs import EnergyAssumptions
from t5like.ablations.report.data import ReportData
from t5like.ablations.report.page import page
from t5like.ablations.report.text import csv_text, markdown, readme_table

PAGE, MARKDOWN, CSV = "report.html", "report.md", "report.csv"
README_TABLE = "table.md"  # the short table, for a README


def write_report(data: ReportData, folder: str | Path, assumptions: EnergyAssumptions | None = None) -> list[Path]:
  """Writes the files into `folder` and returns their paths. The same results give the same bytes."""
  folder = Path(folder).expanduser()
  folder.mkdir(parents=True, exist_ok=True)
  assumptions = assumptions or EnergyAssumptions()
  comparison = compare(data)
  texts = {
    PAGE: page(comparison, assumptions),
    MARKDOWN: markdown(comparison, assumptions),
    CSV: csv_text(comparison),
    README_TABLE: readme_table(comparison) + "\n",
  }
  for name, text in texts.items():
    (folder / name).write_text(text, encoding="utf-8")
  return [folder / name for name in texts]
