"""The token caches of a sweep, all built before training starts; missing data are reported together."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from t5like.ablations.benchmarks import FinetuningMixture
from t5like.ablations.sweep.plan import Planner
from t5like.errors import UserError
from t5like.experiments import seqio_process
from t5like.experiments.token_caches import CacheBuildFailed, CachedTask, TokenCaches, can_build
from t5like.vocabularies import load_vocabulary


def build_caches(planner: Planner) -> None:
  """Tokenizes the corpus and the tasks unless their caches exist."""
  planner.check_custom_recipes()
  splits = list(planner.corpus_files) or ["train", "validation"]
  corpus = _token_caches(planner, planner.corpus_files)
  wanted = [(corpus, planner.corpus_task, split, False) for split in splits]
  for mixtures in _by_lengths(planner):
    for lengths in _distinct_lengths(planner, mixtures[0].spans):
      opened = {split: _task_caches(planner, lengths, split) for split in ("train", "validation")}
      wanted += [(opened[split], task, split, True) for task, split in _splits(mixtures)]
  opened = [_opened(caches, task, split) for caches, task, split, _ in wanted]
  new = [task for (_, task, _, is_tuned), found in zip(wanted, opened, strict=True) if is_tuned and found is None]
  if new and can_build():  # a task that does not exist is an error before the corpus is tokenized
    seqio_process.shares(dict.fromkeys(new, 1.0), "train", planner.settings.task_modules)
  missing = []
  for (caches, task, split, is_tuned), found in zip(wanted, opened, strict=True):
    if task in {missed for missed, *_ in missing}:  # one report per task is enough
      continue
    try:
      members = found or caches.open_or_build(task, split)
    except UserError as error:
      missing.append((task, split, shlex.join(caches.command(task, split)), error))
      continue
    if is_tuned and any(member.cache.is_corpus for member in members):
      raise UserError(f"cannot fine-tune on {task!r}: it is a corpus, without targets", try_="--tasks without it")
  if missing:
    raise UserError(
      "missing data (nothing was trained): " + ", ".join(f"{task} ({split})" for task, split, *_ in missing),
      because="\n".join(
        dict.fromkeys(e.lines["because"] if isinstance(e, CacheBuildFailed) else e.what for *_, e in missing)
      ),
      try_="\n".join(
        ["t5like tasks prepare, --tasks without them, or on a machine with TensorFlow"]
        + [command for *_, command, _ in missing]
      ),
    )


def _opened(caches: TokenCaches, task: str, split: str) -> list[CachedTask] | None:
  with contextlib.suppress(UserError):  # a damaged cache is rebuilt
    return caches.open(task, split)
  return None


def cached_sizes(planner: Planner) -> dict[str, int]:
  """Returns the number of training examples of each tokenized task."""
  sizes: dict[str, int] = {}
  for mixtures in _by_lengths(planner):
    for lengths in _distinct_lengths(planner, mixtures[0].spans)[:1]:
      caches = _task_caches(planner, lengths, "train")
      for task, split in _splits(mixtures):
        members = caches.open(task, split) if split == "train" else None
        if members:
          sizes[task] = sum(member.cache.examples for member in members)
  return sizes


def _by_lengths(planner: Planner) -> list[list[FinetuningMixture]]:
  """Returns the mixtures in groups whose rows have the same lengths: those with and without answer spans."""
  groups = ([mixture for mixture in planner.mixtures if mixture.spans == spans] for spans in (False, True))
  return [group for group in groups if group]


def _distinct_lengths(planner: Planner, spans: bool) -> list[dict[str, int]]:
  """Returns the distinct LENGTHS with which recipes train on tasks: cached tokens depend on them."""
  found: list[dict[str, int]] = []
  failed: list[Exception] = []  # an invalid recipe fails later as a run, which records the error
  for recipe in planner.settings.recipes:
    try:
      lengths = planner.task_lengths(recipe, spans)
    except Exception as error:
      failed.append(error)
      continue
    found += [lengths] if lengths not in found else []
  if failed and not found:
    raise failed[0]
  return found


def _splits(mixtures: Sequence[FinetuningMixture]) -> list[tuple[str, str]]:
  """Returns the tasks and splits whose token caches fine-tuning needs."""
  train = [(task, "train") for mixture in mixtures for task in mixture.trained]
  return list(dict.fromkeys([*train, *((task, "validation") for mixture in mixtures for task in mixture.evaluated)]))


def _task_caches(planner: Planner, lengths: Mapping[str, int], split: str) -> TokenCaches:
  """Opens caches the way `t5like train` does: with LENGTHS, and keeping all examples of evaluation splits."""
  return _token_caches(planner, lengths=lengths, evaluation=split != "train")


def _token_caches(planner: Planner, files: Mapping[str, str] | None = None, **more: Any) -> TokenCaches:
  """Opens caches with the vocabulary that all recipes share at this scale."""
  name = planner.vocabulary
  modules = planner.settings.task_modules
  return TokenCaches(str(planner.cache_dir), name, load_vocabulary(name), modules, files, **more)
