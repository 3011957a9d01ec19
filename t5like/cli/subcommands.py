"""Commands with subcommands, each a module of this folder with `configure(parser)` and `run(args)`."""

import argparse
import importlib
from collections.abc import Mapping

# Summary and module by name of the subcommand.
Table = Mapping[str, tuple[str, str]]


def add_subcommands(parser: argparse.ArgumentParser, table: Table, metavar: str) -> None:
  parsers = parser.add_subparsers(dest="subcommand", required=True, metavar=metavar)
  for name, (summary, module) in table.items():
    subcommand = importlib.import_module(f"t5like.{module}")
    subcommand.configure(
      parsers.add_parser(
        name,
        help=summary,
        description=subcommand.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
      )
    )


def run_subcommand(args: argparse.Namespace, table: Table) -> int:
  return importlib.import_module(f"t5like.{table[args.subcommand][1]}").run(args)
