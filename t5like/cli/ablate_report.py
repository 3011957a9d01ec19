"""`t5like ablate --report`: what a sweep found beside the paper's tables.

t5like ablate --report --sweep_dir=DIR                     writes DIR/report/: report.html, .md, .csv, and table.md
t5like ablate --report --sweep_dir=DIR --export=FILE.json  one small file with all that the report shows
t5like ablate --report --from=FILE.json --output=DIR       the report again, from that file
"""

from __future__ import annotations

import argparse
from pathlib import Path

from t5like.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
  """The options of a report; --sweep_dir is the sweep's own."""
  group = parser.add_argument_group("report")
  group.add_argument("--report", action="store_true", help="write the report of a sweep, finished or not")
  group.add_argument("--from", dest="report_from", metavar="FILE.json", help="report this exported sweep")
  group.add_argument("--output", metavar="DIR", help="where the report goes (default: SWEEP_DIR/report)")
  group.add_argument("--export", metavar="FILE.json", help="write the results into one small file, to keep or commit")
  group.add_argument("--device_watts", type=float, help="power of one device, for the estimate of energy")
  group.add_argument("--power_overhead", type=float, help="energy drawn for each unit that reaches a machine (PUE)")
  group.add_argument("--carbon_intensity", type=float, help="grams of CO2e for each kWh")


def run(args: argparse.Namespace) -> int:
  from t5like.ablations.report import write_report
  from t5like.ablations.report_comparison import compare
  from t5like.ablations.report_data import read_export, read_sweep, write_export
  from t5like.ablations.report_summary import summarise

  if bool(args.report_from) == bool(args.sweep_dir):
    raise UserError("a report is of one sweep", expected="--sweep_dir=DIR, or --from=FILE.json of an exported one")
  assumptions = _assumptions(args)
  data = read_export(args.report_from) if args.report_from else read_sweep(args.sweep_dir)
  if args.export:
    write_export(args.export, data)
    print(f"exported {len(data.results)} runs to {args.export}")
  if args.report_from and not args.output and not args.export:
    raise UserError("a report of an exported sweep needs a folder", try_="--output=DIR")
  output = args.output or (Path(args.sweep_dir) / "report" if args.sweep_dir else None)
  if output:
    summary = summarise(compare(data))
    print("\n".join([summary.scope, *(f"- {text}" for text in (*summary.findings, *summary.missing))]))
    print("report", *write_report(data, output, assumptions), sep="\n  ")
  return 0


def _assumptions(args: argparse.Namespace):
  from t5like.ablations.report_costs import EnergyAssumptions

  given = {
    "watts": args.device_watts,
    "overhead": args.power_overhead,
    "grams_per_kilowatt_hour": args.carbon_intensity,
  }
  for flag, value in (("--device_watts", args.device_watts), ("--carbon_intensity", args.carbon_intensity)):
    if value is not None and not value > 0:
      raise UserError(f"{flag} must be above 0, not {value:g}")
  if args.power_overhead is not None and not args.power_overhead >= 1:
    raise UserError(f"--power_overhead is at least 1, not {args.power_overhead:g}")
  return EnergyAssumptions(**{name: value for name, value in given.items() if value is not None})
