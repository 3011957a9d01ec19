"""The token caches of a sweep, all built before anything is trained; what is missing is named at once."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from t5like.ablations.sweep.plan import Planner
from t5like.errors import UserError
from t5like.experiments.token_caches import NotBuilt, TokenCaches
from t5like.vocabularies import load_vocabulary


def build_caches(planner: Planner) -> None:
  """Tokenises the corpus and the tasks, where that is still to be done."""
  corpus, tasks = _token_caches(planner, planner.corpus_files), _token_caches(planner)
  splits = list(planner.corpus_files) or ["train", "validation"]
  wanted = [(corpus, planner.corpus_task, split) for split in splits]
  wanted += [(tasks, task, split) for task, split in planner.task_splits()]
  missing = []
  for caches, task, split in wanted:
    if task in {missed for missed, *_ in missing}:  # a second look would find no more
      continue
    try:
      caches.open_or_build(task, split)
    except UserError as error:  # the builder has said why
      missing.append((task, split, shlex.join(caches.command(task, split)), error))
  if missing:
    raise UserError(
      "data are missing, and nothing was trained: " + ", ".join(f"{task} ({split})" for task, split, *_ in missing),
      because="the lines above say why" if any(isinstance(e, NotBuilt) for *_, e in missing) else missing[0][3].what,
      try_="\n".join(
        ["t5like tasks prepare, --tasks without them, or on a machine with TensorFlow"]
        + [command for *_, command, _ in missing]
      ),
    )


def cached_sizes(planner: Planner) -> dict[str, int]:
  """The training examples of the tasks that are tokenised."""
  caches, sizes = _token_caches(planner), {}
  for task, split in planner.task_splits():
    members = caches.open(task, split) if split == "train" else None
    if members:
      sizes[task] = sum(member.cache.examples for member in members)
  return sizes


def _token_caches(planner: Planner, files: Mapping[str, str] | None = None) -> TokenCaches:
  """With the vocabulary that all recipes have at this scale."""
  name = planner.vocabulary
  return TokenCaches(str(planner.cache_dir), name, load_vocabulary(name), planner.settings.task_modules, files)
