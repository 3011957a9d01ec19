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
from typing import TYPE_CHECKING, Any

from t5like.cli.options import add_task_modules, task_modules
from t5like.cli.tasks.check import parse_lengths
from t5like.errors import UserError
from t5like.files import storage
from t5like.files.child_processes import end_with_asking_parent
from t5like.files.storage import DEFAULT_ROOT
from t5like.tasks.quiet_start import load_seqio

if TYPE_CHECKING:
  from t5like.data import TaskRecord
  from t5like.data.cache_builder import Progress


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
  parser.add_argument(
    "--lengths",
    metavar="inputs=N,targets=N",
    help="the tokens of a row, for tasks whose own steps depend on them or work on tokens",
  )
  parser.add_argument(
    "--evaluation", action="store_true", help="draw random steps once, to evaluate on: they are else streamed"
  )
  parser.add_argument("--force", action="store_true", help="build again even if an up-to-date cache is there")


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
  members = [registry.find_task(share.task) for share in shares]
  for task in members:
    _build(task, vocabulary, args)
  folder = data.cache_folder(args.out, args.task, args.split, args.vocabulary, vocabulary.fingerprint)
  data.write_mixture(folder, {share.task: share.rate for share in shares})
  _record(members, task_modules(args), "mixture").write(folder)
  print(f"mixture of {len(shares)} tasks: {folder}")
  return 0


def _register_files(name: str, given: Sequence[str]) -> None:
  from t5like.tasks.library.corpora import register_corpus

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
  from t5like.tasks import registry
  from t5like.tasks.caching import finished_tokens
  from t5like.tasks.caching.cache_kind import cache_kind

  registry.check_split(task, args.split)
  folder = data.cache_folder(args.out, task.name, args.split, args.vocabulary, vocabulary.fingerprint)
  found = cache_kind(task, args.split)
  if found.name != "text":
    finished_tokens.check_features(task.name, task.output_features)
  record = _record([task], task_modules(args), found.name, found.why)
  if found.name == "stream" and not args.evaluation:
    print(f"task {task.name!r} is streamed, nothing is kept of it: {found.why}")
  elif found.name in ("tokens", "stream"):
    lengths = parse_lengths(args.lengths)
    if not lengths:
      raise UserError(
        f"what is kept of task {task.name!r} depends on the lengths of rows",
        because=found.why,
        try_="--lengths=inputs=512,targets=114",
      )
    _build_tokens(task, vocabulary, lengths, found.why, args, folder)
  else:
    _build_text(task, vocabulary, args, folder, {} if found.is_closed_as_usual else {"closing": dict(found.closing)})
  record.write(folder)
  return 0


def _record(tasks: Sequence[Any], modules: Sequence[str], kind: str, why: str = "") -> TaskRecord:
  from t5like import data
  from t5like.tasks.caching import text_pipeline

  code: dict[str, str] = {}
  libraries: dict[str, str] = {}
  for task in tasks:
    code |= text_pipeline.code_of(task, modules)
    libraries |= text_pipeline.libraries(task)
  scoring = {} if kind == "mixture" else text_pipeline.scoring(tasks[0])
  return data.TaskRecord(kind, why, code, libraries, scoring)


def _build_text(task, vocabulary, args: argparse.Namespace, folder: Path, more: Mapping[str, Any]) -> None:
  from t5like.tasks.caching import source_shards, text_pipeline

  parts = source_shards.parts_of(task, args.split)
  _build_folder(
    task,
    args,
    folder,
    text_pipeline.describe(task, args.split) | dict(more),
    [functools.partial(text_pipeline.text_examples, part, args.split) for part in parts],
    text_pipeline.text_features(task, args.split),
    vocabulary.encode_batch,
    {"name": args.vocabulary, "size": vocabulary.vocab_size, "fingerprint": vocabulary.fingerprint},
    more,
  )


def _build_tokens(
  task, vocabulary, lengths: Mapping[str, int], why: str, args: argparse.Namespace, folder: Path
) -> None:
  """The whole source is one part: steps may join examples."""
  from t5like import data
  from t5like.tasks.caching import finished_tokens, text_pipeline

  made = finished_tokens.for_model(task, vocabulary)
  size = finished_tokens.size(made, vocabulary)
  targets = finished_tokens.targets_vocabulary(made, vocabulary)
  _build_folder(
    task,
    args,
    data.finished_folder(folder, lengths),
    text_pipeline.describe_tokens(made, args.split, lengths) | ({"targets_vocabulary": targets} if targets else {}),
    [functools.partial(finished_tokens.token_examples, made, args.split, lengths, size)],
    finished_tokens.features(made, args.split, lengths),
    None,
    {"name": args.vocabulary, "size": size, "fingerprint": vocabulary.fingerprint},
    {"finished": True, "why": why, "answers": finished_tokens.answers_are(made), "targets_vocabulary": targets},
  )


def _build_folder(task, args, folder, description, parts, features, encode, vocabulary, more) -> None:
  from t5like import data
  from t5like.tasks.caching import text_pipeline

  if not args.force and _is_current(folder, description):
    print(f"up to date: {folder}")
    return
  with data.sole_builder(folder, waiting=lambda holder: print(f"waiting for {holder}, which builds it ...")) as alive:
    if not args.force and _is_current(folder, description):
      print(f"up to date: {folder}")
      return
    line = ProgressLine(task.num_input_examples(args.split), alive)
    workers = _usable_cpus() if args.workers is None else args.workers
    data.build_cache(
      folder,
      parts,
      features,
      encode,
      vocabulary=vocabulary,
      description=description,
      scoring=text_pipeline.scoring(task),
      workers=0 if encode is None else workers,
      progress=line,
      more=more,
    )
    line.close()
  print(f"token cache written: {folder}")


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
    written = data.describe_cache(folder, mend="")
    # Caches of before do not say which other code the task uses.
    return written == {name: value for name, value in description.items() if name in written or name != "uses"}
  except UserError as error:
    if folder.exists():
      print(f"the token cache is built anew: {error.what}", file=sys.stderr)
    return False
