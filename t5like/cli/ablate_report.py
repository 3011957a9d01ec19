"""`t5like ablate --report`: compares the results of a sweep with the paper's tables.

t5like ablate --report --sweep_dir=DIR                     writes DIR/report/: report.html, .md, .csv, and table.md
t5like ablate --report --sweep_dir=DIR --export=FILE.json  writes one small file with all data of the report
t5like ablate --report --from=FILE.json --output=DIR       writes the report from that file
t5like ablate --report --from=A.json --from=B.json ...     joins parts of one sweep, such as those of two machines
t5like ablate --report --from=mini --output=DIR            writes the report of our sweep at mini scale on one H200
"""

from __future__ import annotations

import argparse
from pathlib import Path

from t5like.cli.options import task_modules
from t5like.errors import UserError
from t5like.files import storage

ONLY = ("report_from", "output", "export", "device_watts", "pue", "co2e")  # options that a sweep does not have


def configure(parser: argparse.ArgumentParser) -> None:
  """Adds the options of a report; --sweep_dir is shared with the sweep."""
  group = parser.add_argument_group("report")
  group.add_argument("--report", action="store_true", help="write the report of a sweep, finished or not")
  group.add_argument(
    "--from", dest="report_from", metavar="FILE.json", action="append",
    help="exported sweep to report; repeat it for its parts; "
    "mini, midi, midi_squad_3500, midi_24000, midi_tables_9_to_11, midi_bert5, midi_bert5_256, midi_bart1: ours",
  )  # fmt: skip
  group.add_argument("--output", metavar="DIR", help="output directory (default: SWEEP_DIR/report)")
  group.add_argument("--export", metavar="FILE.json", help="write the results into one small file, to keep or commit")
  group.add_argument("--device_watts", type=float, help="power of one busy device (default: by device kind)")
  group.add_argument("--pue", type=float, help="power usage effectiveness of the data center (default: 1.1)")
  group.add_argument("--co2e", type=float, help="kg of CO2e per kWh (default: 0.373, the US average)")


def run(args: argparse.Namespace) -> int:
  from t5like.ablations.report import write_report
  from t5like.ablations.report.comparison import compare
  from t5like.ablations.report.data import read_exports, read_sweep, write_export
  from t5like.ablations.report.summary import summarize
  from t5like.configuration.statements import import_module

  if bool(args.report_from) == bool(args.sweep_dir):
    raise UserError("a report needs exactly one sweep", expected="--sweep_dir=DIR, or --from=FILE.json of an export")
  assumptions = _assumptions(args)
  sweep_dir, exported = _path(args.sweep_dir, "--sweep_dir"), [_path(x, "--from") for x in args.report_from or []]
  output, export = _path(args.output, "--output"), _path(args.export, "--export")
  for module in task_modules(args):  # modules named in sweep.json are not imported: they may be untrusted
    import_module(module, "--task_modules")
  data = read_exports(exported) if exported else read_sweep(sweep_dir)
  if export:
    with storage.write_errors("the export", file=export):
      write_export(export, data)
    print(f"exported {len(data.results)} runs to {export}")
  if exported and not output and not export:
    raise UserError("--from requires --output", try_="--output=DIR")
  output = output or (sweep_dir / "report" if sweep_dir else None)
  if output:
    summary = summarize(compare(data))
    print("\n".join([summary.scope, *(f"- {text}" for text in (*summary.findings, *summary.missing))]))
    with storage.write_errors("the report", folder=output, try_="--output=DIR, another folder"):
      files = write_report(data, output, assumptions)
    print("report", *files, sep="\n  ")
  return 0


def _path(given: str | None, option: str) -> Path | None:
  return storage.local_path(given, option) if given else None


def _assumptions(args: argparse.Namespace):
  from t5like.ablations.report.costs import EnergyAssumptions

  given = {"watts": args.device_watts, "pue": args.pue, "co2e": args.co2e}
  for flag, value, least in (("device_watts", args.device_watts, 0), ("pue", args.pue, 1), ("co2e", args.co2e, 0)):
    if value is not None and not value >= least:
      raise UserError(f"invalid --{flag}: {value:g} (expected at least {least})")
  return EnergyAssumptions(**{name: value for name, value in given.items() if value is not None})
