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
import contextlib
import sys
from typing import TYPE_CHECKING

from t5like import storage
from t5like.cli.gin_flags import add_gin_arguments, load_configuration
from t5like.cli.supervisor import ALONE, supervise
from t5like.errors import RunError, UserError
from t5like.training.step_file import StepFile, is_supervised

if TYPE_CHECKING:  # help and the supervisor must not wait for jax
  from t5like.cli.experiment import Experiment
  from t5like.training.goodput import Goodput


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--dry_run", action="store_true", help="print the configuration and the run card, then stop")
  group = parser.add_argument_group("when it fails")
  group.add_argument("--restarts", type=int, default=0, metavar="N", help="start again after a crash, N times at most")
  group.add_argument(
    "--restart_wait", type=float, default=5.0, metavar="SECONDS", help="before the first of them; then twice as long"
  )
  add_host_arguments(parser)


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("several machines, where no cluster tells")
  group.add_argument("--coordinator", metavar="HOST:PORT", help="of process 0 (or T5LIKE_COORDINATOR)")
  group.add_argument("--processes", type=int, metavar="N", help="in all (or T5LIKE_NUM_PROCESSES)")
  group.add_argument("--process_id", type=int, metavar="I", help="of this one, from 0 (or T5LIKE_PROCESS_ID)")
  group.add_argument(
    "--start_timeout", type=float, default=300.0, metavar="SECONDS", help="to wait for all hosts (default: 300)"
  )


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
  from t5like import configuration
  from t5like.training.goodput import Goodput

  goodput = Goodput()
  load_configuration(args)
  hosts = meet_other_hosts(args, configuration.resolved_config())
  experiment = configuration.build("train")
  if hosts:
    from t5like.training.progress import say

    say(str(hosts))
  return train_experiment(experiment, goodput, args.dry_run)


def train_experiment(experiment: Experiment, goodput: Goodput, dry_run: bool = False) -> int:
  """Trains, or with `dry_run` only says what would be trained; the exit status. Sweeps train by this too."""
  from t5like import configuration, parallel
  from t5like.cli.training_plan import prepare
  from t5like.cli.training_run import Run
  from t5like.training.model_dir import check_model_dir
  from t5like.training.progress import say
  from t5like.training.run_lock import sole_trainer

  model_dir = check_model_dir(experiment.model_dir)
  for name in ("cache_dir", "restore_from", "init_from"):
    storage.check_reachable(getattr(experiment, name) or ".", name.upper())
  step_file = StepFile(model_dir)
  with (
    parallel.use_preset(experiment.mesh.preset),
    contextlib.nullcontext() if dry_run else sole_trainer(model_dir),
  ):
    with goodput.spent_on("preparing"):
      plan = prepare(experiment, dry_run)
    if dry_run:
      say(configuration.resolved_config())
    say(plan.run_card)
    return 0 if dry_run else Run(experiment, plan, goodput, step_file).execute()
