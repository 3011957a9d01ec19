"""Pre-train or fine-tune a model. The same command goes on where a stopped run left off.

  t5like train --gin_file=models/t5/tiny.gin --gin_file=objectives/span_corruption.gin \\
      --gin_file=runs/pretrain.gin --gin.MODEL_DIR=~/runs/demo --gin.TRAIN_STEPS=50
"""

import argparse

from t5like import configuration
from t5like.cli.gin_flags import add_gin_arguments, load_configuration


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--dry_run", action="store_true", help="print the configuration and the run card, then stop")


def run(args: argparse.Namespace) -> int:
  load_configuration(args)
  experiment = configuration.build("train")

  from t5like import parallel
  from t5like.cli.training_run import execute, prepare

  with parallel.use_preset(experiment.mesh.preset):
    plan = prepare(experiment, build_data=not args.dry_run)
    if args.dry_run:
      print(configuration.resolved_config())
    print(plan.run_card)
    return 0 if args.dry_run else execute(experiment, plan)
