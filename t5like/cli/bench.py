"""Measure how fast things are on this machine, beside a peer or a limit where there is one.

t5like bench data
"""

import argparse
import importlib

SUBCOMMANDS = {
  "data": ("objectives, tokenising, and batches from a token cache", "bench_data"),
}


def configure(parser: argparse.ArgumentParser) -> None:
  parsers = parser.add_subparsers(dest="subcommand", required=True, metavar="WHAT")
  for name, (summary, module) in SUBCOMMANDS.items():
    subcommand = importlib.import_module(f"t5like.cli.{module}")
    subcommand.configure(
      parsers.add_parser(
        name, help=summary, description=subcommand.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
      )
    )


def run(args: argparse.Namespace) -> int:
  return importlib.import_module(f"t5like.cli.{SUBCOMMANDS[args.subcommand][1]}").run(args)
