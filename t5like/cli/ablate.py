"""Reproduce tables of the T5 paper: pre-train every row, fine-tune it, score it, compare with the paper.

  t5like ablate --table=7 --scale=smoke --sweep_dir=/tmp/sweep
  t5like ablate --table=7 --scale=mini --corpus=text.train.jsonl --validation_corpus=text.validation.jsonl \\
      --sweep_dir=~/sweep
  t5like ablate --report --sweep_dir=~/sweep

The same command goes on where a stopped sweep left off, and finished runs are not run twice. Given again elsewhere
(other machines that share the directory) it adds workers; --workers=8 starts as many on one machine whose GPU one
small model would not fill. --list prints the `t5like train` commands of all runs; what was trained by hand counts too.
Without --table a sweep goes on as it was begun, with --table or --rows a worker does those alone.

Exit status: 0 all runs are finished; 1 some failed, and the others are finished; 2 bad input, nothing begun; 75 the
device was lost, 130 and 143 interrupted: to be started again.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from t5like.ablations.sweep.local_workers import check_workers, run_workers
from t5like.ablations.sweep.plan import SCALES, Planner, Settings, SweepRun, agree, own_recipes, read_settings
from t5like.ablations.sweep.results import SWEEP
from t5like.ablations.tables import TABLES, find_tables, recipes_of
from t5like.cli import ablate_report
from t5like.cli.options import add_host_arguments
from t5like.cli.train import meet_other_hosts
from t5like.errors import UserError
from t5like.files import storage


def configure(parser: argparse.ArgumentParser) -> None:
  parser.set_defaults(gin_file=[])  # --gin.NAME=VALUE is for every run of the sweep
  group = parser.add_argument_group("what is run")
  group.add_argument("--table", type=int, action="append", default=[], metavar="N", help="2, 4, 5, 6, 7, 9 or 11")
  group.add_argument("--rows", action="append", default=[], help="only these rows or recipes; repeat it")
  group.add_argument(
    "--recipe", action="append", default=[], metavar="FILE", help="a recipe of your own: a gin file; repeat it"
  )
  group.add_argument("--scale", choices=SCALES, help="sizes and steps (default: paper)")
  group.add_argument("--seeds", type=int, metavar="N", help="runs of each recipe (default: as the scale has it)")
  group.add_argument(
    "--tasks", action="append", default=[], help="to fine-tune on, with commas between; a+b: on both at once"
  )
  group.add_argument("--corpus", metavar="FILES", help="text to pre-train on, JSON lines or plain")
  group.add_argument("--validation_corpus", metavar="FILES", help="held-out text")
  group.add_argument("--task_modules", action="append", default=[], metavar="MODULE", help="a module to import")
  group = parser.add_argument_group("how")
  group.add_argument("--sweep_dir", metavar="DIR", help="where everything is kept; workers share it")
  group.add_argument(
    "--workers", type=int, default=1, metavar="N", help="processes that share this machine's GPU (default: 1)"
  )
  group.add_argument("--list", action="store_true", help="print the commands of all runs, then stop")
  group.add_argument("--prepare_only", action="store_true", help="build all token caches, then stop")
  group.add_argument("--gin.NAME", dest="_", metavar="VALUE", help="for every run, such as --gin.PRETRAIN_STEPS=100")
  add_host_arguments(parser)
  ablate_report.configure(parser)


def run(args: argparse.Namespace) -> int:
  if args.report:
    return ablate_report.run(args)
  if not args.sweep_dir:
    raise UserError("a sweep needs a directory", try_="--sweep_dir=~/sweep")
  from t5like.experiments.reading import register_configurables

  register_configurables()
  sweep_dir = storage.local_path(args.sweep_dir, "--sweep_dir").absolute()
  asked = settings_of(args, sweep_dir)
  if args.list:
    planner = Planner(sweep_dir, agree(sweep_dir, asked, write=False), known_sizes(sweep_dir, asked))
    return show(planner.runs(asked.recipes, asked.seeds))

  check_workers(args.workers, (args.coordinator, args.processes, args.process_id))
  if args.workers > 1 and not args.prepare_only:
    return run_workers([sys.executable, "-m", "t5like", *args.argv, "--workers=1"], args.workers)

  from t5like.ablations.sweep.caches import build_caches
  from t5like.ablations.sweep.worker import Worker
  from t5like.parallel.process_zero import first_process_decides

  meet_other_hosts(args, str(asked))

  def prepare() -> int:
    # Written down once its data are there: a misspelt task must not bind the command that corrects it.
    build_caches(Planner(sweep_dir, agree(sweep_dir, asked, write=False)))
    agree(sweep_dir, asked)
    return 0

  first_process_decides(prepare)
  settings = read_settings(sweep_dir)
  planner = Planner(sweep_dir, settings, known_sizes(sweep_dir, settings))
  if args.prepare_only:
    print(f"all token caches are there: {planner.cache_dir}")
    return 0
  return Worker(sweep_dir, settings.scale, planner.runs(asked.recipes, asked.seeds), end_process=os._exit).work()


def settings_of(args: argparse.Namespace, sweep_dir: Path) -> Settings:
  """What the command line asks for; what it does not say, a sweep that was begun has said, or else the scale."""
  begun = (sweep_dir / SWEEP).is_file()
  before = read_settings(sweep_dir) if begun else Settings([], [], "paper", 0, [], [])
  own = own_recipes(args.recipe)
  if not (begun or args.table or own):
    raise UserError("no table to reproduce", known=", ".join(map(str, TABLES)), try_="--table=7")
  if args.validation_corpus and not args.corpus:
    raise UserError("--validation_corpus is held out of --corpus, which is not given")
  if args.seeds is not None and args.seeds < 1:
    raise UserError(f"--seeds={args.seeds}", expected="1 or more")
  tables = find_tables(args.table or (before.tables if args.rows else []))
  recipes = [*(recipes_of(tables, args.rows) if tables or args.rows else []), *own]
  files = [_absolute(file) for file in (args.corpus, args.validation_corpus) if file]
  asked = Settings(
    tables=[table.number for table in tables] or before.tables,
    recipes=recipes or before.recipes,
    scale=args.scale or before.scale,
    seeds=args.seeds or before.seeds,
    tasks=_listed(args.tasks) or before.tasks,
    corpus=files or before.corpus,
    own=before.own | own,
    task_modules=_listed(args.task_modules) or before.task_modules,
    gin=[list(pair) for pair in args.gin_overrides] or before.gin,
  )
  scale = Planner(sweep_dir, asked).scale
  return dataclasses.replace(asked, seeds=asked.seeds or scale.seeds, tasks=asked.tasks or list(scale.tasks))


def _listed(given: Sequence[str]) -> list[str]:
  return [name for text in given for name in text.split(",") if name]


def known_sizes(sweep_dir: Path, settings: Settings) -> dict[str, int]:
  """Training examples of the tasks whose token caches are there."""
  from t5like.ablations.sweep.caches import cached_sizes

  return cached_sizes(Planner(sweep_dir, settings))


def show(runs: Sequence[SweepRun]) -> int:
  """The commands of every run, each line one, to be spread over machines by any launcher."""
  for sweep_run in runs:
    print(f"# {sweep_run.recipe}, seed {sweep_run.seed}")
    for part in sweep_run.parts:
      print(part.command)
  return 0


def _absolute(files: str) -> str:
  """A pattern of files as any working directory understands it; gs:// stays as it is."""
  return files if storage.is_remote(files) else str(storage.as_path(files).absolute())
