"""Pre-train or fine-tune a model. The same command goes on where a stopped run left off.

  t5like train --gin_file=models/t5/tiny.gin --gin_file=objectives/span_corruption.gin \\
      --gin_file=runs/pretrain.gin --gin.MODEL_DIR=~/runs/demo --gin.TRAIN_STEPS=50

On several machines, the same command on each: TPU pods, Slurm, Kubernetes and Open MPI are found by themselves,
elsewhere the three options of a host say who is who.

Exit status: 0 finished; 1 failed while running; 2 bad input, nothing begun, or MODEL_DIR was removed; 124 stalled
(WATCHDOG_MINUTES); 130 and 143 interrupted by SIGINT or SIGTERM, saved, to be started again. Others above 128 are
signals that end a process at once: 134 (SIGABRT) where JAX lost its coordinator, the host of process 0; 135 (SIGBUS)
where a disk failed or ran full under a mapped file; 137 (SIGKILL) where the machine ran out of memory; 142 (SIGALRM)
stalled in code that keeps the interpreter. With --restarts=N, crashes and stalls are started again automatically, and
the status is that of the last attempt.
"""

from __future__ import annotations

import argparse
import os
import sys

from t5like.cli.options import add_gin_arguments, add_host_arguments, gin_search_paths
from t5like.cli.supervisor import ALONE, supervise
from t5like.errors import RunError, UserError
from t5like.training.guards.step_file import is_supervised


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--dry_run", action="store_true", help="print the configuration and the run card, then stop")
  group = parser.add_argument_group("when it fails")
  group.add_argument("--restarts", type=int, default=0, metavar="N", help="start again after a crash, N times at most")
  group.add_argument(
    "--restart_wait", type=float, default=5.0, metavar="SECONDS", help="before the first of them; then twice as long"
  )
  add_host_arguments(parser)


def run(args: argparse.Namespace) -> int:
  if args.restarts < 0 or args.restart_wait < 0:
    raise UserError("--restarts and --restart_wait cannot be below 0")
  if args.restarts and not args.dry_run and not is_supervised():
    return supervise([sys.executable, "-m", "t5like", *args.argv], args.restarts, args.restart_wait)
  return train(args)


class Alone(RunError):
  """Other hosts are not here yet: the supervisor tries again."""

  status = ALONE


def meet_other_hosts(args: argparse.Namespace, config: str) -> object:
  """Joins the other hosts, if any. Where a supervisor brings them back, one who is missing is no bad input."""
  from t5like import parallel
  from t5like.parallel.roll_call import RollCallError

  try:
    return parallel.start(args.coordinator, args.processes, args.process_id, args.start_timeout, config)
  except RollCallError as error:
    raise (Alone(error.what, **error.lines) if is_supervised() else error) from None


def train(args: argparse.Namespace) -> int:
  from t5like import parallel
  from t5like.console import say
  from t5like.experiments.reading import build_experiment, load_files
  from t5like.runs import training
  from t5like.training.records.goodput import Goodput

  goodput = Goodput()
  config = load_files(args.gin_file, args.gin_overrides, gin_search_paths(args))
  hosts = meet_other_hosts(args, config)  # before anything is built: JAX must not have looked for devices yet
  experiment = build_experiment()
  say(str(hosts) if hosts else "")
  if args.dry_run:
    prepared = training.dry_run(experiment)
    say(f"{config}\n{prepared.card}")
    return 0
  result = training.train(experiment, signals=parallel.stop_signals(), goodput=goodput, end_process=os._exit)
  return 0 if result.signal is None else 128 + result.signal
