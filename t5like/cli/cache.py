"""Tokenise a seqio task once; every run, objective and epoch then reads the tokens.

A build that was stopped, even by a kill or a full disk, goes on where it was when the command is given again.

t5like cache novels --vocabulary=tiny
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t5like import storage
from t5like.cli.child_processes import end_with_asking_parent
from t5like.cli.tasks import add_task_modules, task_modules
from t5like.errors import UserError
from t5like.tasks.quiet_start import load_seqio

if TYPE_CHECKING:
  from t5like.data.cache_builder import Progress

DEFAULT_ROOT = "~/.cache/t5like"


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("task", help="a registered seqio task")
  parser.add_argument("--vocabulary", default="t5", help="a vocabulary's name or file (default: t5)")
  parser.add_argument("--split", default="train", help="the split to tokenise (default: train)")
  parser.add_argument("--out", default=DEFAULT_ROOT, help=f"the folder of all caches (default: {DEFAULT_ROOT})")
  parser.add_argument(
    "--workers",
    type=int,
    metavar="N",
    help="processes that tokenise, besides the one that reads (default: one for each CPU); 0: do all in one",
  )
  add_task_modules(parser)
  parser.add_argument(
    "--files",
    action="append",
    default=[],
    metavar="SPLIT=FILES",
    help="register TASK as a corpus of these JSON-lines or text files, such as train='news/*.jsonl.gz'",
  )
  parser.add_argument("--force", action="store_true", help="build again even if an up-to-date cache is there")


def command(
  task: str,
  split: str,
  vocabulary: str,
  out: str,
  task_modules: Sequence[str] = (),
  files: Mapping[str, str] | None = None,
  force: bool = False,
) -> list[str]:
  """The command line that builds this cache."""
  line = ["t5like", "cache", task, f"--vocabulary={vocabulary}", f"--split={split}", f"--out={out}"]
  line += [f"--task_modules={m}" for m in task_modules]
  line += [f"--files={name}={pattern}" for name, pattern in (files or {}).items()]
  return line + (["--force"] if force else [])


def run(args: argparse.Namespace) -> int:
  end_with_asking_parent()
  if args.workers is not None and args.workers < 0:
    raise UserError(f"--workers={args.workers}", expected="0 or more")
  storage.check_reachable(args.out, "--out")
  print(f"loading seqio for task {args.task!r} ...", flush=True)
  load_seqio()
  from t5like import data
  from t5like.tasks import mixtures, registry
  from t5like.vocabularies import load_vocabulary

  if args.files:
    _register_files(args.task, args.files)
  found = registry.find_task_or_mixture(args.task, task_modules(args))
  vocabulary = load_vocabulary(args.vocabulary)
  if not mixtures.is_mixture(found):
    return _build(found, vocabulary, args)
  shares = [share for share in mixtures.shares(found, args.split) if share.rate > 0]
  for share in shares:
    _build(registry.find_task(share.task), vocabulary, args)
  folder = data.cache_folder(args.out, args.task, args.split, args.vocabulary, vocabulary.fingerprint)
  data.write_mixture(folder, {share.task: share.rate for share in shares})
  print(f"mixture of {len(shares)} tasks: {folder}")
  return 0


def _register_files(name: str, given: Sequence[str]) -> None:
  from t5like.tasks.corpora import register_corpus

  files = dict(item.split("=", 1) for item in given if "=" in item)
  if len(files) < len(given):
    raise UserError(f"--files={given[-1]}", expected="SPLIT=FILES, such as train='news/*.jsonl.gz'")
  register_corpus(name, files)


def _build(task, vocabulary, args: argparse.Namespace) -> int:
  from t5like.tasks.missing_data import data_explained

  with data_explained(task):
    return _build_known(task, vocabulary, args)


def _build_known(task, vocabulary, args: argparse.Namespace) -> int:
  from t5like import data
  from t5like.tasks import source_shards, text_pipeline

  folder = data.cache_folder(args.out, task.name, args.split, args.vocabulary, vocabulary.fingerprint)
  description = text_pipeline.describe(task, args.split)
  if not args.force and _is_current(folder, description):
    print(f"up to date: {folder}")
    return 0

  with data.sole_builder(folder, waiting=lambda holder: print(f"waiting for {holder}, which builds it ...")) as alive:
    if not args.force and _is_current(folder, description):
      print(f"up to date: {folder}")
      return 0
    parts = source_shards.parts_of(task, args.split)
    line = ProgressLine(task.num_input_examples(args.split), alive)
    data.build_cache(
      folder,
      [functools.partial(text_pipeline.text_examples, part, args.split) for part in parts],
      text_pipeline.text_features(task, args.split),
      vocabulary.encode_batch,
      vocabulary={"name": args.vocabulary, "size": vocabulary.vocab_size, "fingerprint": vocabulary.fingerprint},
      description=description,
      scoring=text_pipeline.scoring(task),
      workers=_usable_cpus() if args.workers is None else args.workers,
      progress=line,
    )
    line.close()
  print(f"token cache written: {folder}")
  return 0


def _usable_cpus() -> int:
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProgressLine:
  """Examples, tokens, tokens/s and, where the number of examples is known, the time left."""

  def __init__(self, total: int | None, alive=lambda: None):
    self._total, self._alive = total, alive
    self._started = self._told = time.monotonic()
    self._last: Progress | None = None

  def __call__(self, done: Progress) -> None:
    self._last = done
    self._alive()
    if time.monotonic() - self._told >= 2:
      self._told = time.monotonic()
      print(self.text(done, time.monotonic() - self._started), flush=True)

  def close(self) -> None:
    if self._last:
      print(self.text(self._last, time.monotonic() - self._started), flush=True)

  def text(self, done: Progress, seconds: float) -> str:
    total = f" of {self._total:,}" if self._total else ""
    speed = (done.tokens - done.resumed_tokens) / max(seconds, 1e-9)
    parts = [f"{done.examples:,}{total} examples", f"{done.tokens:,} tokens", f"{speed:,.0f} tokens/s"]
    fresh = done.examples - done.resumed_examples
    if self._total and fresh and done.examples < self._total:
      parts.append(f"about {_duration((self._total - done.examples) * seconds / fresh)} left")
    if done.resumed_tokens:
      parts.append(f"{done.resumed_tokens:,} tokens were there from an earlier attempt")
    return "  " + ", ".join(parts)


def _duration(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _is_current(folder: Path, description: dict) -> bool:
  from t5like import data

  try:
    return data.describe_cache(folder, mend="") == description
  except UserError as error:
    if folder.exists():
      print(f"the token cache is built anew: {error.what}", file=sys.stderr)
    return False
