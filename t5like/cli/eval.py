"""Score checkpoints: by decoding, by ranking candidates, by the loss of text; follow a run; compare two of them.

  t5like eval --model_dir=~/runs/demo_snli --task=snli                    the newest checkpoint
  t5like eval --model_dir=~/runs/demo_snli --task=snli --follow           each as training writes it
  t5like eval --model_dir=gpt2 --task=snli --shots=5 --rank --prompt=my_prompt.txt
  t5like eval --model_dir=gpt2 --loss --text=book.txt                     perplexity and bits per byte
  t5like eval --compare ~/runs/a ~/runs/b                                 is b better, or is it chance?
  t5like eval --model_dir=~/runs/glue --submit=glue                       files for the leaderboard

MODEL_DIR is the directory of a run or conversion, one of its checkpoints, or a Hugging Face folder. Tables are written
to MODEL_DIR/evaluations/scores.json and scores.csv, answers to MODEL_DIR/predictions. What was evaluated is remembered.
On several machines, the same command on each with T5LIKE_COORDINATOR, T5LIKE_NUM_PROCESSES and T5LIKE_PROCESS_ID.
"""

import argparse
from pathlib import Path

from t5like.errors import UserError
from t5like.files import storage


def configure(parser: argparse.ArgumentParser) -> None:
  from t5like.cli.decoding_options import add_decoding_arguments
  from t5like.cli.options import add_task_modules

  parser.add_argument("--model_dir", "--model", help="a model directory, a checkpoint in it, or a Hugging Face folder")
  parser.add_argument("--task", help="tasks or mixtures with metrics, by commas (default: the run's own)")
  parser.add_argument("--split", help="the split to score (default: validation)")
  parser.add_argument("--examples", type=int, default=0, metavar="N", help="only the first N examples of each task")
  parser.add_argument(
    "--average", action="store_true", help="the moving average of the parameters, where a run kept it"
  )
  parser.add_argument("--again", action="store_true", help="also what was evaluated already")
  parser.add_argument("--batch_size", type=int, metavar="N", help="rows at a time (default: the run's, or 32)")
  parser.add_argument("--inputs_length", type=int, metavar="N", help="cut inputs to N tokens (default: as in training)")
  parser.add_argument("--show", type=int, default=3, metavar="N", help="answers to print (default: 3)")
  parser.add_argument("--out", help="write there (default: MODEL_DIR)")
  parser.add_argument("--vocabulary", help="a vocabulary's name or file, where the model does not tell")
  parser.add_argument("--cache_dir", help="the folder of token caches (default: ~/.cache/t5like)")
  add_task_modules(parser)
  _add_checkpoints(parser)
  _add_ways(parser)
  add_decoding_arguments(parser)


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("which checkpoints").add_mutually_exclusive_group()
  group.add_argument("--step", type=int, help="one (default: the newest)")
  group.add_argument("--steps", metavar="all|N,N", help="all of them, or several")
  group.add_argument("--follow", action="store_true", help="each as training writes it, until the run has ended")


def _add_ways(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("candidates and prompts")
  group.add_argument(
    "--rank", nargs="?", const="sum", metavar="sum|mean", help="choose the likeliest label; of a token"
  )
  group.add_argument("--candidates", metavar="FIELD|FILE", help="what to rank, in place of the task's labels")
  group.add_argument(
    "--shots", type=int, metavar="K", help="K solved examples before each question; 0: the prompt alone"
  )
  group.add_argument("--shots_split", default="train", help="the split they come from (default: train)")
  group.add_argument("--prompt", metavar="FILE", help="a template with {inputs} and {targets}")
  group.add_argument(
    "--infill", action="store_true", help="T5: the answer fills the first sentinel, as in pre-training"
  )
  group = parser.add_argument_group("loss, perplexity and bits per byte")
  group.add_argument("--loss", action="store_true", help="of a corpus, of the targets of a task, or of --text")
  group.add_argument("--text", metavar="FILE", help="a text file, or JSON lines with a text each")
  group.add_argument("--text_field", default="text", help="the member of a JSON line (default: text)")
  group.add_argument(
    "--window", type=int, metavar="N", help="tokens read together (default: as many as the model takes)"
  )
  group.add_argument("--stride", type=int, metavar="N", help="GPT: from window to window (default: half a window)")
  group.add_argument("--objective", metavar="NAME", help="what a denoiser has to fill in (default: as in training)")
  group = parser.add_argument_group("other")
  group.add_argument("--submit", choices=("glue", "squad"), help="files for a leaderboard")
  group.add_argument(
    "--squad_file", metavar="FILE", help="the official questions: answers get the text of their contexts"
  )
  group.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two model directories or files of predictions")
  group.add_argument("--resamples", type=int, default=10_000, metavar="N", help="of the bootstrap (default: 10,000)")


def run(args: argparse.Namespace) -> int:
  _check(args)
  if args.compare:
    from t5like.cli import eval_compare

    return eval_compare.run(args)

  from t5like import parallel
  from t5like.console import say

  hosts = parallel.start(config=repr(sorted(vars(args).items())))
  if hosts:
    say(str(hosts))
  if args.loss or args.text:
    from t5like.evaluation import text_loss as way
  else:
    from t5like.evaluation import task_evaluation as way
  return way.run(args)


def _check(args: argparse.Namespace) -> None:
  """Options that cannot go together, before anything is loaded."""
  if bool(args.compare) == bool(args.model_dir):
    raise UserError(
      "one model is scored, or two are compared",
      expected="--model_dir=DIR, or --compare A B",
      try_="t5like eval --help",
    )
  if args.model_dir and not args.follow:
    storage.check_reachable(args.model_dir, "--model_dir")
    _check_folder(storage.as_path(args.model_dir))
  for name in ("examples", "shots", "show"):
    if (getattr(args, name) or 0) < 0:
      raise UserError(f"--{name}={getattr(args, name)} cannot work", expected="0 or more")
  for name in ("batch_size", "inputs_length", "window", "stride", "resamples"):
    if getattr(args, name) is not None and getattr(args, name) < 1:
      raise UserError(f"--{name}={getattr(args, name)} cannot work", expected="1 or more")
  loss = args.loss or args.text
  for name, needs, there in (
    ("candidates", "--rank", args.rank), ("squad_file", "--submit=squad", args.submit == "squad"),
    ("window", "--loss", loss), ("stride", "--loss", loss), ("objective", "--loss", loss),
  ):  # fmt: skip
    if getattr(args, name) is not None and not there:
      raise UserError(f"--{name} belongs to {needs}", try_=f"{needs} --{name}={getattr(args, name)}")
  if loss and (args.rank or args.shots is not None or args.prompt or args.submit):
    raise UserError("--loss looks at the text as it is", expected="no --rank, --shots, --prompt or --submit beside it")
  if args.submit and (args.follow or args.steps):
    raise UserError("a submission is of one checkpoint", try_="--step=N")


def _check_folder(folder: Path) -> None:
  """Without a look at anything heavy: is there a model at all?"""
  if not any((folder / name).exists() for name in ("config.gin", "config.json", "bert_config.json", "params")):
    raise UserError(
      "no model and no checkpoint here",
      looked=folder,
      found=", ".join(sorted(p.name for p in folder.iterdir())[:8]) if folder.is_dir() else "",
      expected="a model directory (config.gin), its checkpoints/<step>, or a Hugging Face folder (config.json)",
    )
