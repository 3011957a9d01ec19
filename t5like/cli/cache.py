"""Tokenise a seqio task once; every run, objective and epoch then reads the tokens.

t5like cache novels --vocabulary=tiny
"""

import argparse
import os
import time
from pathlib import Path

DEFAULT_ROOT = "~/.cache/t5like"


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("task", help="a registered seqio task")
  parser.add_argument("--vocabulary", default="t5", help="a vocabulary's name or file (default: t5)")
  parser.add_argument("--split", default="train", help="the split to tokenise (default: train)")
  parser.add_argument("--out", default=DEFAULT_ROOT, help=f"the folder of all caches (default: {DEFAULT_ROOT})")
  parser.add_argument(
    "--task_modules", action="append", default=[], metavar="MODULE", help="a module to import that registers tasks"
  )
  parser.add_argument("--force", action="store_true", help="build again even if an up-to-date cache is there")


def command(
  task: str, split: str, vocabulary: str, out: str, task_modules: list[str], force: bool = False
) -> list[str]:
  """The command line that builds this cache."""
  line = ["t5like", "cache", task, f"--vocabulary={vocabulary}", f"--split={split}", f"--out={out}"]
  return line + [f"--task_modules={m}" for m in task_modules] + (["--force"] if force else [])


def run(args: argparse.Namespace) -> int:
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow greets with a screen of hardware remarks
  print(f"loading seqio for task {args.task!r} ...", flush=True)
  from t5like import data
  from t5like.tasks import registry, text_pipeline
  from t5like.vocabularies import load_vocabulary

  task = registry.find_task(args.task, [m for given in args.task_modules for m in given.split(",")])
  vocabulary = load_vocabulary(args.vocabulary)
  folder = data.cache_folder(args.out, args.task, args.split, args.vocabulary, vocabulary.fingerprint)
  description = text_pipeline.describe(task, args.split)
  if not args.force and _is_current(folder, description):
    print(f"up to date: {folder}")
    return 0

  features = [name for name in ("inputs", "targets") if name in task.output_features]
  started = time.monotonic()

  def progress(examples: int, tokens: int) -> None:
    speed = tokens / max(time.monotonic() - started, 1e-9)
    print(f"  {examples:,} examples, {tokens:,} tokens, {speed:,.0f} tokens/s", flush=True)

  data.write_cache(
    folder,
    text_pipeline.text_examples(task, args.split),
    features,
    vocabulary.encode_batch,
    vocabulary={"name": args.vocabulary, "size": vocabulary.vocab_size, "fingerprint": vocabulary.fingerprint},
    description=description,
    scoring=text_pipeline.scoring(task),
    progress=progress,
  )
  print(f"token cache written: {folder}")
  return 0


def _is_current(folder: Path, description: dict) -> bool:
  from t5like import data
  from t5like.errors import UserError

  try:
    return data.open_cache(folder, mend="").manifest["description"] == description
  except UserError:
    return False  # missing or damaged: build it
