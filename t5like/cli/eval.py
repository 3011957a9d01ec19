"""Score a model directory's checkpoint on a task, by decoding.

t5like eval --model_dir=~/runs/demo_snli --task=snli
"""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--model_dir", required=True, help="the directory of a training run")
  parser.add_argument("--task", help="a task with metrics (default: the run's own)")
  parser.add_argument("--split", default="validation", help="the split to score (default: validation)")
  parser.add_argument("--step", type=int, help="the checkpoint's step (default: the newest)")
  parser.add_argument("--examples", type=int, default=0, help="at most so many examples (default: all)")
  parser.add_argument("--batch_size", type=int, help="rows decoded at a time (default: the run's)")
  parser.add_argument("--show", type=int, default=5, metavar="N", help="answers to print (default: 5)")


def run(args: argparse.Namespace) -> int:
  from pathlib import Path

  from t5like import parallel
  from t5like.cli import evaluation_run
  from t5like.cli.compatibility import check_scorable, model_fingerprint
  from t5like.cli.gin_flags import load_experiment
  from t5like.cli.token_caches import TokenCaches
  from t5like.objectives import Lengths
  from t5like.training.checkpoints import find_checkpoint, load_parameters
  from t5like.vocabularies import load_vocabulary

  model_dir = Path(args.model_dir).expanduser().absolute()
  checkpoint = find_checkpoint(model_dir, args.step)
  experiment = load_experiment(model_dir)
  task = args.task or experiment.task

  vocabulary = load_vocabulary(experiment.vocabulary)
  mesh = parallel.make_mesh(experiment.mesh)
  batch_size = args.batch_size or experiment.batch_size
  parallel.check_batch(batch_size, mesh, "--batch_size")
  caches = TokenCaches(experiment.cache_dir, experiment.vocabulary, vocabulary, experiment.task_modules)
  members = caches.open_or_build(task, args.split)
  for member in members:
    check_scorable(member.cache)
  # A pre-training run has no target length of its own for labelled tasks: T5's 62 serves them all.
  targets = experiment.lengths.get("targets", 62)
  lengths = Lengths(raw=experiment.lengths["inputs"], inputs=experiment.lengths["inputs"], targets=targets)

  params = load_parameters(checkpoint, fingerprint=model_fingerprint(experiment.model.config, vocabulary))
  with parallel.use_preset(experiment.mesh.preset):
    for member in members:
      score = evaluation_run.scorer(
        experiment.model, mesh, vocabulary, member.cache, lengths, batch_size, args.examples
      )
      result = score(params)
      path = evaluation_run.predictions_path(model_dir, member.task, args.split, int(checkpoint.name), args.examples)
      result.write(path)
      evaluation_run.show(result, member.task, args.split, int(checkpoint.name), args.show)
      print(f"all answers: {path}")
  return 0
