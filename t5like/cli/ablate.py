"""Reproduce tables of the papers of T5, BERT and BART: pre-train every row, fine-tune it, score it, compare.

  t5like ablate --table=7 --scale=smoke --sweep_dir=/tmp/sweep
  t5like ablate --table=7 --scale=mini --corpus=text.train.jsonl --validation_corpus=text.validation.jsonl \\
      --sweep_dir=~/sweep
  t5like ablate --report --sweep_dir=~/sweep

The same command resumes a stopped sweep; finished runs are not repeated. Run it on other machines that share the
directory to add workers; --workers=8 starts eight on one machine if a small model does not saturate its GPU, and
--together=3 trains three runs of one shape, such as the seeds of a recipe, in one program. --list prints the
`t5like train` commands of all runs; runs that you train manually count when the sweep runs again. Without --table it
resumes with its original settings; with --table or --rows a worker only runs those.

Exit status: 0 all runs finished; 1 some failed, the others finished; 2 invalid input, nothing started; 75 device lost,
130 and 143 interrupted: run the command again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from t5like.ablations.sweep.local_workers import check_workers, run_workers
from t5like.ablations.sweep.plan import Planner, plan_sweep
from t5like.ablations.sweep.settings import SCALES, SweepSettings, custom_recipes
from t5like.cli import ablate_report
from t5like.cli.options import add_host_arguments, at_least
from t5like.cli.train import join_hosts
from t5like.errors import UserError
from t5like.files import storage

# Options of a sweep that a report does not have.
_SWEEP_ONLY = (
  "table", "rows", "recipe", "scale", "seeds", "tasks", "corpus", "validation_corpus", "workers", "together", "list",
  "prepare_only", "gin_overrides",
)  # fmt: skip
_NAMES = {"report_from": "--from", "gin_overrides": "--gin.NAME=VALUE"}


def configure(parser: argparse.ArgumentParser) -> None:
  parser.set_defaults(gin_file=[])  # --gin.NAME=VALUE is for every run of the sweep
  group = parser.add_argument_group("experiments")
  group.add_argument(
    "--table",
    type=_table,
    action="append",
    default=[],
    metavar="N",
    help="2, 4, 5, 6, 7, 9, 10 or 11 of T5, bart1, bert5, bert6, or narang",
  )
  group.add_argument("--rows", action="append", default=[], help="only this row or recipe; may be repeated")
  group.add_argument(
    "--recipe", action="append", default=[], metavar="FILE", help="a custom recipe: a gin file; may be repeated"
  )
  group.add_argument("--scale", choices=SCALES, help="sizes and steps (default: paper)")
  group.add_argument("--seeds", type=at_least(1), metavar="N", help="runs of each recipe (default: set by the scale)")
  group.add_argument(
    "--tasks", action="append", default=[], help="tasks to fine-tune on, comma-separated; a+b: both in one mixture"
  )
  group.add_argument("--corpus", metavar="FILES", help="pre-training text, JSON lines or plain text")
  group.add_argument("--validation_corpus", metavar="FILES", help="held-out text")
  group.add_argument("--task_modules", action="append", default=[], metavar="MODULE", help="module that defines tasks")
  group = parser.add_argument_group("execution")
  group.add_argument("--sweep_dir", metavar="DIR", help="directory of the sweep, shared by its workers")
  group.add_argument(
    "--workers", type=int, default=1, metavar="N", help="processes that share this machine's GPU (default: 1)"
  )
  group.add_argument(
    "--together", type=int, default=1, metavar="N", help="runs of one shape that train in one program (default: 1)"
  )
  group.add_argument("--list", action="store_true", help="print the commands of all runs and exit")
  group.add_argument("--prepare_only", action="store_true", help="build all token caches and exit")
  group.add_argument(
    "--gin.NAME", dest="_", metavar="VALUE", help="override for every run, such as --gin.PRETRAIN_STEPS=100"
  )
  add_host_arguments(parser)
  ablate_report.configure(parser)


def run(args: argparse.Namespace) -> int:
  given = [name for name, value in vars(args).items() if _is_given(name, value)]
  if args.report:
    _check_mode(given, _SWEEP_ONLY, "a sweep, not for its report")
    return ablate_report.run(args)
  _check_mode(given, ablate_report.ONLY, "--report")
  if not args.sweep_dir:
    raise UserError("--sweep_dir is required", try_="--sweep_dir=~/sweep")
  sweep_dir = storage.local_path(args.sweep_dir, "--sweep_dir").absolute()
  given = sweep_settings(args)
  planner = plan_sweep(sweep_dir, given, args.rows)
  for name in given.custom_recipes:
    planner.experiment(name)  # raises UserError for an invalid one; those of earlier commands fail as runs
  if args.list:
    return show(planner)
  check_workers(args.workers, args.together, (args.coordinator, args.processes, args.process_id))
  if args.workers > 1 and not args.prepare_only:
    return run_workers([sys.executable, "-m", "t5like", *args.argv, "--workers=1"], args.workers)

  from t5like.ablations.sweep.worker import prepare_sweep, run_sweep

  join_hosts(args, str(planner.requested))
  prepare_sweep(planner)
  if args.prepare_only:
    print(f"all token caches are built: {planner.cache_dir}")
    return 0
  return run_sweep(planner, end_process=os._exit, together=args.together)


def _is_given(name: str, value: object) -> bool:
  return value not in (None, []) and value is not False and (name, value) not in (("workers", 1), ("together", 1))


def _check_mode(given: Sequence[str], others: Sequence[str], mode: str) -> None:
  """Raises UserError for options that the command would ignore."""
  if ignored := [_NAMES.get(name, f"--{name}") for name in given if name in others]:
    raise UserError(f"only for {mode}: {', '.join(ignored)}", try_="t5like ablate --help")


def _table(text: str) -> int | str:
  return int(text) if text.isdigit() else text


def sweep_settings(args: argparse.Namespace) -> SweepSettings:
  """Returns the settings of the command line; options that were not given are empty."""
  if args.validation_corpus and not args.corpus:
    raise UserError("--validation_corpus requires --corpus")
  return SweepSettings(
    tables=args.table,
    recipes=[],  # plan_sweep finds those of --rows in the tables
    scale=args.scale or "",
    seeds=args.seeds or 0,
    tasks=_split_commas(args.tasks),
    corpus=[_absolute(file) for file in (args.corpus, args.validation_corpus) if file],
    custom_recipes=custom_recipes(args.recipe),
    task_modules=_split_commas(args.task_modules),
    gin=[list(pair) for pair in args.gin_overrides],
  )


def _split_commas(given: Sequence[str]) -> list[str]:
  return [name for text in given for name in text.split(",") if name]


def show(planner: Planner) -> int:
  """Prints the commands of all runs, one per line, for any launcher."""
  from t5like.ablations.sweep.caches import cached_sizes

  for sweep_run in planner.runs(cached_sizes(planner)):
    print(f"# {sweep_run.recipe}, seed {sweep_run.seed}")
    for job in sweep_run.jobs:
      print(job.command)
  return 0


def _absolute(files: str) -> str:
  """Makes a pattern of files absolute; gs:// stays as it is."""
  return files if storage.is_remote(files) else str(storage.as_path(files).absolute())
