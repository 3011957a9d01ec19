"""Check a task for problems: missing features, truncated text, unseen labels, correct answers that score low.

t5like tasks check snli
t5like tasks check glue_rte --split=validation --lengths inputs=256,targets=8

Exits with status 0 if there are no problems, 1 otherwise.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import TYPE_CHECKING

from t5like.cli.options import add_task_modules, at_least, parse_lengths, task_modules
from t5like.console import paint

if TYPE_CHECKING:
  from t5like.tasks.checks import CheckReport, Finding

PROBLEMS_FOUND = 1
_MOST_SCORES = 6


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("task", help="a registered task, or a mixture (checks each of its tasks)")
  parser.add_argument("--split", default="train", help="the split to check (default: train)")
  parser.add_argument("--vocabulary", help="name or file of a vocabulary (default: t5, or an encoder task's own)")
  parser.add_argument(
    "--lengths", metavar="FEATURE=N,...", help="sequence lengths of a run in tokens (default: inputs=512,targets=62)"
  )
  parser.add_argument("--limit", type=at_least(1), help="maximum number of rows to check (default: 100,000)")
  add_task_modules(parser)


def run(args: argparse.Namespace) -> int:
  from t5like.tasks.checks import check_all

  lengths = parse_lengths(args.lengths)
  problems = 0
  for report, vocabulary in check_all(args.task, args.split, args.vocabulary, lengths, args.limit, task_modules(args)):
    print_report(report, vocabulary)
    problems += len(report.problems)
  return PROBLEMS_FOUND if problems else 0


def print_report(report: CheckReport, vocabulary: str) -> None:
  part = "" if report.is_complete else "the first "
  print(paint(f"{report.task} ({report.split})", "bold") + f": {part}{report.rows:,} rows, vocabulary {vocabulary}")
  if report.tokens:
    print(f"  {'tokens':<9}{'median':>8}{'90%':>8}{'99%':>8}{'longest':>9}   unknown   truncated")
    for name, tokens in report.tokens.items():
      middle = "".join(f"{tokens.percentile(percent):>8,}" for percent in (50, 90, 99))
      truncated = "-"
      if name in report.lengths:
        truncated = f"{100 * tokens.share_longer(report.lengths[name]):.2f}% at {report.lengths[name]}"
      unknown = f"{100 * tokens.unknown_share:.3f}%"
      print(f"  {name:<9}{middle}{tokens.percentile(100):>9,}   {unknown:>7}   {truncated}")
  if report.labels:
    counts = ", ".join(f"{word} {count:,}" for word, count in report.labels.counts.most_common())
    _print_wrapped("labels", counts)
  if report.scores:
    part = f" (first {report.scores.rows:,} rows)" if report.scores.rows < report.rows else ""
    _print_wrapped(f"correct answers score{part}", _scores(report.scores.through_vocabulary))
    _print_wrapped(f"always {_short(report.scores.majority_answer)!r} scores", _scores(report.scores.majority))
  for finding in report.problems:
    _print_finding("problem", "red", finding)
  for finding in report.notes:
    _print_finding("note", "yellow", finding)
  count = len(report.problems)
  conclusion = f"{count} problem{'s' if count > 1 else ''}" if count else "no problems"
  print("  " + paint(conclusion, "red" if count else "green"))


def _scores(scores: dict[str, float]) -> str:
  """Formats the first few scores: entity types have three each."""
  shown = [f"{name} {value:.2f}" for name, value in scores.items() if not name.endswith(("total", "_thresh"))]
  return ", ".join(shown[:_MOST_SCORES]) + (
    f" and {len(shown) - _MOST_SCORES} more" if len(shown) > _MOST_SCORES else ""
  )


def _short(text: str) -> str:
  return text if len(text) <= 40 else text[:40] + " …"


def _print_finding(kind: str, color: str, finding: Finding) -> None:
  print(f"  {paint(kind, color)}  {finding.what}")
  for label, text in (("example", finding.example), ("try", finding.remedy)):
    if text:
      print(f"  {'':<{len(kind)}}    {label:<8}{' '.join(text.split())}")


def _print_wrapped(label: str, text: str) -> None:
  width = max(shutil.get_terminal_size((120, 24)).columns, 60)
  print(textwrap.fill(text, width, initial_indent=f"  {label}: ", subsequent_indent="    "))
