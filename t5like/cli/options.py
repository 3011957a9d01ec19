"""Options shared by several commands."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from t5like.errors import UserError

if TYPE_CHECKING:  # help must not wait for jax
  from t5like.experiments.experiment import Experiment


def add_gin_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("configuration")
  group.add_argument(
    "--gin_file", action="append", default=[], metavar="FILE", help="a gin file; repeatable, later files win"
  )
  group.add_argument(
    "--gin.NAME", dest="_", metavar="VALUE", help="set a macro or parameter, e.g. --gin.BATCH_SIZE=64 (no quotes)"
  )
  group.add_argument(
    "--gin_search_paths", action="append", default=[], metavar="DIR", help="another folder with gin files; repeatable"
  )


def option_lines(args: argparse.Namespace) -> str:
  """Returns the options of a command as text, which must be the same on all hosts."""
  return "\n".join(f"--{name}={value!r}" for name, value in sorted(vars(args).items()))


def read_experiment(args: argparse.Namespace) -> Experiment:
  """Returns the experiment that the gin files and overrides of the command line describe."""
  from t5like.experiments import reading

  return reading.read_experiment(args.gin_file, args.gin_overrides, gin_search_paths(args))


def gin_search_paths(args: argparse.Namespace) -> list[str]:
  return [path for given in args.gin_search_paths for path in given.split(",") if path]


SEEDS = 2**32  # numbers of 32 bits


def at_least(least: int, below: int | None = None) -> Callable[[str], int]:
  """Returns the type of an option that is a whole number."""
  limit = "" if below is None else f", less than {below:,}"

  def read(text: str) -> int:
    try:
      number = int(text)
    except ValueError:
      number = least - 1
    if number < least or (below is not None and number >= below):
      raise argparse.ArgumentTypeError(f"invalid value: {text!r} (expected a whole number of at least {least}{limit})")
    return number

  return read


def add_peer_python(parser: argparse.ArgumentParser) -> None:
  def find(text: str) -> str:
    if (program := shutil.which(os.path.expanduser(text))) is None:
      raise argparse.ArgumentTypeError(f"no such program: {text}")
    return program

  help_ = "Python interpreter with torch (default: this one)"
  parser.add_argument("--peer_python", metavar="PYTHON", type=find, help=help_)


def add_languages(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--languages",
    type=lambda text: tuple(text.split(",")),
    metavar="IN,OUT",
    help="codes of inputs and outputs for mBART, such as en_XX,ro_RO (default: the model's own)",
  )


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("multi-host (only if the cluster is not detected automatically)")
  group.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0 (or T5LIKE_COORDINATOR)")
  group.add_argument("--processes", type=int, metavar="N", help="number of processes (or T5LIKE_NUM_PROCESSES)")
  group.add_argument("--process_id", type=int, metavar="I", help="of this process, from 0 (or T5LIKE_PROCESS_ID)")
  group.add_argument(
    "--start_timeout",
    type=float,
    default=300.0,
    metavar="SECONDS",
    help="time limit for all hosts to join (default: 300)",
  )


def add_task_modules(parser: argparse.ArgumentParser) -> None:
  """Adds the option of every command that uses tasks."""
  parser.add_argument(
    "--task_modules",
    action="append",
    default=[],
    metavar="MODULE",
    help="a module to import that registers tasks, objectives or metrics; repeatable, or comma-separated",
  )


def task_modules(args: argparse.Namespace) -> list[str]:
  return [module for given in args.task_modules for module in given.split(",") if module]


def parse_lengths(given: str | None) -> dict[str, int]:
  """Parses `inputs=512,targets=62` into a dict."""
  lengths = {}
  for part in (given or "").split(","):
    name, equals, number = part.strip().partition("=")
    if not part.strip():
      continue
    if name not in ("inputs", "targets") or not equals or not number.isdigit() or int(number) < 1:
      raise UserError(f"invalid --lengths: {given}", expected="a list such as inputs=512,targets=62", at=part)
    lengths[name] = int(number)
  return lengths
