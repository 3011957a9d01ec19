"""Tokenize a seqio task once, for all runs, objectives and epochs.

An interrupted build, even after a kill or a full disk, resumes when the command is run again. A run that finds a
damaged file names it, with the command that repairs it (--repair).

t5like cache novels --vocabulary=tiny
"""

from __future__ import annotations

import argparse
import functools
import shlex

from t5like.cli.options import add_task_modules, parse_lengths, task_modules
from t5like.errors import UserError
from t5like.files import storage
from t5like.files.child_processes import exit_with_parent
from t5like.files.storage import DEFAULT_ROOT
from t5like.tasks.quiet_start import load_seqio


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("task", help="a registered seqio task")
  parser.add_argument("--vocabulary", default="t5", help="name or file of a vocabulary (default: t5)")
  parser.add_argument("--split", default="train", help="the split to tokenize (default: train)")
  parser.add_argument("--out", default=DEFAULT_ROOT, help=f"folder of all token caches (default: {DEFAULT_ROOT})")
  parser.add_argument(
    "--workers",
    type=int,
    metavar="N",
    help="number of tokenizing processes in addition to the reader (default: one per CPU); 0: a single process",
  )
  add_task_modules(parser)
  parser.add_argument(
    "--files",
    action="append",
    default=[],
    metavar="[CORPUS/]SPLIT=FILES",
    help="register TASK as a corpus of JSON-lines or text files, such as train='news/*.jsonl.gz'; or as a mixture of "
    "several corpora: books/train='books/*.jsonl', or '{language}/train=mc4/c4-{language}.*.json.gz' for all languages",
  )
  parser.add_argument(
    "--lengths",
    metavar="inputs=N,targets=N",
    help="sequence lengths in tokens, for tasks whose preprocessors depend on them or work on tokens",
  )
  parser.add_argument(
    "--evaluation", action="store_true", help="cache one draw of random preprocessors, for evaluation (default: stream)"
  )
  parser.add_argument(
    "--beam_options",
    metavar="OPTIONS",
    help="build with Apache Beam: '--runner=DirectRunner --direct_num_workers=4 "
    "--direct_running_mode=multi_processing', or '--runner=DataflowRunner --project=...'",
  )
  how = parser.add_mutually_exclusive_group()
  how.add_argument("--force", action="store_true", help="rebuild from the start, even if an up-to-date cache exists")
  how.add_argument(
    "--repair",
    metavar="SHARD[,SHARD]",
    help="rebuild only the damaged files of these shards, such as shard-00007-00002; all: check every shard",
  )


def run(args: argparse.Namespace) -> int:
  exit_with_parent()
  if args.workers is not None and args.workers < 0:
    raise UserError(f"invalid --workers: {args.workers} (expected 0 or more)")
  storage.check_reachable(args.out, "--out")
  print(f"loading seqio for task {args.task!r} ...", flush=True)
  load_seqio()
  from t5like.experiments.cache_building import CacheSettings, build_token_cache
  from t5like.experiments.corpus_files import from_options

  settings = CacheSettings(
    args.task,
    args.vocabulary,
    args.split,
    args.out,
    args.workers,
    task_modules(args),
    from_options(args.files),
    parse_lengths(args.lengths),
    args.evaluation,
    args.force,
    shlex.split(args.beam_options or ""),
  )
  report = functools.partial(print, flush=True)
  if args.repair is not None:
    from t5like.experiments.cache_repair import repair_token_cache

    repair_token_cache(settings, [] if args.repair == "all" else args.repair.split(","), report)
    return 0
  distribute = None
  if args.beam_options is not None:
    from t5like.experiments.beam_building import build_with_beam as distribute
  build_token_cache(settings, report, distribute)
  return 0
