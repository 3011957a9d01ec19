"""Pre-train or fine-tune a model. The same command goes on where a stopped run left off.

  t5like train --gin_file=models/t5/tiny.gin --gin_file=objectives/span_corruption.gin \\
      --gin_file=runs/pretrain.gin --gin.MODEL_DIR=~/runs/demo --gin.TRAIN_STEPS=50

On several machines, the same command on each: TPU pods, Slurm, Kubernetes and Open MPI are found by themselves,
elsewhere the three options of a host say who is who.

Exit status: 0 finished; 1 failed while running; 2 bad input, nothing begun; 124 stalled (WATCHDOG_MINUTES);
130 and 143 interrupted by SIGINT or SIGTERM, saved, to be started again.
"""

import argparse
import contextlib

from t5like import configuration
from t5like.cli.gin_flags import add_gin_arguments, load_configuration


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--dry_run", action="store_true", help="print the configuration and the run card, then stop")
  group = parser.add_argument_group("several machines, where no cluster tells")
  group.add_argument("--coordinator", metavar="HOST:PORT", help="of process 0 (or T5LIKE_COORDINATOR)")
  group.add_argument("--processes", type=int, metavar="N", help="in all (or T5LIKE_NUM_PROCESSES)")
  group.add_argument("--process_id", type=int, metavar="I", help="of this one, from 0 (or T5LIKE_PROCESS_ID)")
  group.add_argument(
    "--start_timeout", type=float, default=300.0, metavar="SECONDS", help="to wait for all hosts (default: 300)"
  )


def run(args: argparse.Namespace) -> int:
  from t5like.training.goodput import Goodput

  goodput = Goodput()
  load_configuration(args)

  from t5like import parallel

  hosts = parallel.start(
    args.coordinator, args.processes, args.process_id, args.start_timeout, configuration.resolved_config()
  )
  experiment = configuration.build("train")

  from t5like.cli.training_plan import prepare
  from t5like.cli.training_run import Run
  from t5like.training.model_dir import check_model_dir
  from t5like.training.progress import say
  from t5like.training.run_lock import sole_trainer

  if hosts:
    say(str(hosts))
  model_dir = check_model_dir(experiment.model_dir)
  with (
    parallel.use_preset(experiment.mesh.preset),
    contextlib.nullcontext() if args.dry_run else sole_trainer(model_dir),
  ):
    with goodput.spent_on("preparing"):
      plan = prepare(experiment, args.dry_run)
    if args.dry_run:
      say(configuration.resolved_config())
    say(plan.run_card)
    return 0 if args.dry_run else Run(experiment, plan, goodput).execute()
