"""Pre-train or fine-tune a model. The same command resumes a stopped run.

  t5like train --gin_file=models/t5/tiny.gin --gin_file=objectives/span_corruption.gin \\
      --gin_file=runs/pretrain.gin --gin.MODEL_DIR=~/runs/demo --gin.TRAIN_STEPS=50

With a file of finetune/suites it fine-tunes on several tasks with several seeds and prints a table of their scores:

  t5like train --gin_file=models/bert/base.gin --gin_file=finetune/bert.gin --gin_file=finetune/suites/glue.gin \\
      --gin.INIT_FROM=~/downloads/bert-base-uncased --gin.MODEL_DIR=~/runs/glue --gin.SEEDS=3

Multi-host: run the same command on every host. TPU pods, Slurm, Kubernetes and Open MPI are detected automatically;
elsewhere set --coordinator, --processes and --process_id.

Exit status: 0 finished; 1 failed while running; 2 invalid input, nothing started, or MODEL_DIR was removed; 124 stalled
(WATCHDOG_MINUTES); 130 and 143 interrupted by SIGINT or SIGTERM, saved, can be resumed. Others above 128 are signals
that end a process at once: 134 (SIGABRT) JAX lost its coordinator, the host of process 0; 135 (SIGBUS) a disk failed or
filled up under a mapped file; 137 (SIGKILL) the machine ran out of memory; 142 (SIGALRM) stalled in code that holds the
GIL. With --restarts=N, the run is restarted automatically after crashes and stalls, and the status is that of the last
attempt.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from t5like.cli.options import add_gin_arguments, add_host_arguments, gin_search_paths
from t5like.cli.supervisor import HOSTS_MISSING, supervise
from t5like.errors import RunError, UserError
from t5like.training.guards.step_file import is_supervised

if TYPE_CHECKING:  # help and the supervisor must not wait for jax
  from t5like.ablations.suites.plan import SuiteCommand


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--dry_run", action="store_true", help="print the configuration and the run card, then stop")
  group = parser.add_argument_group("restarts")
  group.add_argument("--restarts", type=int, default=0, metavar="N", help="restart after a crash, at most N times")
  group.add_argument(
    "--restart_wait", type=float, default=5.0, metavar="SECONDS", help="wait before the first restart; then doubled"
  )
  add_host_arguments(parser)


def run(args: argparse.Namespace) -> int:
  if args.restarts < 0 or args.restart_wait < 0:
    raise UserError("--restarts and --restart_wait must not be negative")
  if args.restarts and not args.dry_run and not is_supervised():
    return supervise([sys.executable, "-m", "t5like", *args.argv], args.restarts, args.restart_wait)
  return train(args)


class HostsMissing(RunError):
  """Other hosts have not started yet: the supervisor tries again."""

  status = HOSTS_MISSING


def join_hosts(args: argparse.Namespace, config: str) -> object:
  """Joins the other hosts, if any. Under a supervisor, which restarts them, a missing host is not an input error."""
  from t5like import parallel
  from t5like.parallel.roll_call import RollCallError

  try:
    return parallel.start(args.coordinator, args.processes, args.process_id, args.start_timeout, config)
  except RollCallError as error:
    raise (HostsMissing(error.what, **error.lines) if is_supervised() else error) from None


def train_suite(args: argparse.Namespace, command: SuiteCommand) -> int:
  """Trains the recipes of a suite with all seeds; a dry run checks them and prints their commands."""
  join_hosts(args, str(command))
  if args.dry_run:
    from t5like.ablations.suites.plan import plan_suite
    from t5like.console import say

    for run in plan_suite(command):
      say(f"# {run.recipe}, seed {run.seed}\n{run.jobs[0].command}")
    return 0
  from t5like.ablations.suites.running import run_suite

  return run_suite(command, end_process=os._exit)


def train(args: argparse.Namespace) -> int:
  from t5like.ablations.suites.plan import find_suite
  from t5like.experiments.reading import register_configurables

  register_configurables()
  if command := find_suite(args.gin_file, args.gin_overrides, gin_search_paths(args)):
    return train_suite(args, command)
  return train_run(args)


def train_run(args: argparse.Namespace) -> int:
  from t5like import parallel
  from t5like.console import say
  from t5like.experiments.reading import build_experiment, load_files
  from t5like.runs import training
  from t5like.training.records.goodput import Goodput

  goodput = Goodput()
  config = load_files(args.gin_file, args.gin_overrides, gin_search_paths(args))
  hosts = join_hosts(args, config)  # before anything is built: JAX must not have looked for devices yet
  experiment = build_experiment()
  say(str(hosts) if hosts else "")
  if args.dry_run:
    prepared = training.dry_run(experiment)
    say(f"{config}\n{prepared.card}")
    return 0
  result = training.train(experiment, signals=parallel.stop_signals(), goodput=goodput, end_process=os._exit)
  return 128 + result.signal if result.stopped == "interrupted" else 0
