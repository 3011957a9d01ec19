"""Opens the token caches of a task or mixture, and has them built where they are missing.

Building needs TensorFlow, training must not: it happens in a process of its own.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from t5like import data
from t5like.errors import UserError
from t5like.files.child_processes import bound_to_this_process
from t5like.files.storage import DEFAULT_ROOT
from t5like.vocabularies import Vocabulary, load_vocabulary


@dataclasses.dataclass(frozen=True)
class CachedTask:
  """A task of a mixture; a task alone is a mixture of one."""

  task: str
  cache: data.TokenCache
  rate: float = 1.0


class MustStream(UserError):
  """A task of which nothing can be kept: its steps draw random numbers."""

  def __init__(self, task: str, why: str):
    super().__init__(f"task {task!r} can only be streamed", because=why, try_="--gin.STREAM=True, in training")
    self.why = why


class NotBuilt(UserError):
  """The process that was to build a cache has printed what is wrong."""


class TokenCaches:
  """The caches of one vocabulary under one folder."""

  def __init__(
    self,
    root: str,
    name: str,
    vocabulary: Vocabulary,
    task_modules: Sequence[str] = (),
    corpus_files: Mapping[str, str] | None = None,
    hint: str = "",
    lengths: Mapping[str, int] | None = None,
    evaluation: bool = False,
  ):
    """`hint` is printed where a cache must be built: how it, or the task, may be found elsewhere.

    lengths: of a row, for tasks whose finished tokens depend on them.
    evaluation: random steps are drawn once and kept; in training such tasks are streamed.
    """
    self._root, self._name, self._vocabulary, self._hint = root, name, vocabulary, hint
    self._lengths, self._evaluation = dict(lengths or {}), evaluation
    self._built: set[tuple[str, str]] = set()  # tasks and splits that were built here, and so are current
    self._task_modules, self._corpus_files = list(task_modules), corpus_files

  def folder(self, task: str, split: str) -> Path:
    return data.cache_folder(self._root, task, split, self._name, self._vocabulary.fingerprint)

  def command(self, task: str, split: str, force: bool = False) -> list[str]:
    return cache_command(
      task,
      split,
      self._name,
      self._root,
      self._task_modules,
      self._corpus_files,
      force,
      self._lengths,
      self._evaluation,
    )

  def open(self, task: str, split: str) -> list[CachedTask] | None:
    """What is there and current, None if something must be built; a damaged cache is an error.

    Raises MustStream for a task that is not kept.
    """
    rates = data.read_mixture(
      self.folder(task, split), rebuild_command=shlex.join(self.command(task, split, force=True))
    )
    if rates and self._is_changed(task, data.read_record(self.folder(task, split))):
      return None
    caches = {name: self._open_task(name, split) for name in rates or [task]}
    if None in caches.values():
      return None
    return [CachedTask(name, cache, rates[name] if rates else 1.0) for name, cache in caches.items()]

  def _open_task(self, task: str, split: str) -> data.TokenCache | None:
    folder = self.folder(task, split)
    record = data.read_record(folder)
    if self._is_changed(task, record) or (record is None and self._is_to_be_checked(task, split)):
      return None
    if record and record.kind == "stream" and not self._evaluation:
      raise MustStream(task, record.why)
    if record and record.kind in ("tokens", "stream"):
      folder = data.finished_folder(folder, self._lengths)
    if not folder.is_dir():
      return None
    rebuild_command = shlex.join(self.command(task, split, force=True))
    cache = data.open_cache(folder, rebuild_command, record.scoring if record else None)
    changed = data.changed_since_written(cache, self._vocabulary.fingerprint)
    if changed:
      print(f"the token cache {folder} is stale: {changed}")
      return None
    return cache

  def _is_changed(self, task: str, record: data.TaskRecord | None) -> bool:
    """Whether the code of a task or mixture differs from when its cache was written; says so."""
    changed = data.changed_code(record) if record else ""
    if not changed:
      return False
    own = [module for module in record.modules if not module.startswith("t5like.")]
    if own and not self._task_modules:
      raise UserError(
        f"the token cache of task {task!r} is not current: {changed}",
        try_=f"--task_modules={own[0]}, or in training --gin.TASK_MODULES: the module that registers the task",
      )
    print(f"task {task!r}: {changed} since its token cache was written", flush=True)
    return can_build()  # without TensorFlow the caches of shipped tasks are used as they are

  def _is_to_be_checked(self, task: str, split: str) -> bool:
    """Whether a cache of an earlier version, without a record of its task, is checked: tasks of the user's are."""
    return bool(self._task_modules) and (task, split) not in self._built and can_build()

  def open_or_build(self, task: str, split: str) -> list[CachedTask]:
    members = self.open(task, split)
    if members is not None:
      return members
    line = self.command(task, split)
    print(f"no current token cache of {task!r} ({split}): {shlex.join(line)}", flush=True)
    if self._hint:
      print(f"  ({self._hint})", flush=True)
    status = subprocess.run([sys.executable, "-m", *line], env=bound_to_this_process()).returncode
    if status == UserError.status:
      raise NotBuilt(f"no token cache of task {task!r} ({split})", because="its builder was refused, as printed above")
    self._built |= {(task, split)} | {(name, split) for name in data.read_mixture(self.folder(task, split), "") or ()}
    members = self.open(task, split) if status == 0 else None
    if members is None:
      raise UserError(f"the token cache could not be built (status {status})", try_=shlex.join(line))
    return members


def token_cache(
  task: str,
  vocabulary: str = "t5",
  split: str = "train",
  *,
  root: str = DEFAULT_ROOT,
  task_modules: Sequence[str] = (),
  files: Mapping[str, str] | None = None,
  lengths: Mapping[str, int] | None = None,
  evaluation: bool = False,
) -> data.TokenCache:
  """Opens the token cache of a task; one that is missing or not current is built first, in a process of its own.

  Args:
    task: a registered task; with `files`, the name of a corpus.
    vocabulary: a vocabulary's name or file.
    split: the split of the task.
    root: the folder of all caches.
    task_modules: modules to import, which register tasks.
    files: by split: JSON-lines or text files that become the corpus `task`.
    lengths: of a row, for tasks whose own steps depend on them or work on tokens.
    evaluation: random steps are drawn once and kept; otherwise a task that has them can only be streamed.

  Returns:
    The cache: `cache.examples`, `cache.tokens`, `cache.example(number)`.

  Raises:
    UserError: there is no such task, its data are missing, it is a mixture, or it can only be streamed.
  """
  caches = TokenCaches(
    root,
    vocabulary,
    load_vocabulary(vocabulary),
    task_modules,
    files,
    lengths=lengths,
    evaluation=evaluation,
  )
  members = caches.open_or_build(task, split)
  if len(members) > 1 or members[0].task != task:
    names = ", ".join(member.task for member in members)
    raise UserError(f"{task!r} is a mixture: each of its tasks has a cache", tasks=names)
  return members[0].cache


def can_build() -> bool:
  """Whether TensorFlow is installed, which training itself does not need."""
  return importlib.util.find_spec("tensorflow") is not None


def cache_command(
  task: str,
  split: str,
  vocabulary: str,
  out: str,
  task_modules: Sequence[str] = (),
  files: Mapping[str, str] | None = None,
  force: bool = False,
  lengths: Mapping[str, int] | None = None,
  evaluation: bool = False,
) -> list[str]:
  """The command line that builds this cache."""
  line = ["t5like", "cache", task, f"--vocabulary={vocabulary}", f"--split={split}", f"--out={out}"]
  line += [f"--task_modules={m}" for m in task_modules]
  line += [f"--files={name}={pattern}" for name, pattern in (files or {}).items()]
  line += [f"--lengths={','.join(f'{name}={n}' for name, n in lengths.items())}"] if lengths else []
  return line + ["--evaluation"] * evaluation + ["--force"] * force
