"""Opens the token caches of a task or mixture and builds missing ones.

Building needs TensorFlow, which training must not import: it runs in a separate process.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from t5like import data
from t5like.errors import ERROR_FILE, UserError
from t5like.experiments import cache_folders
from t5like.experiments.corpus_files import CorpusFiles, are_several, as_options, member_files
from t5like.experiments.seqio_process import modules_for
from t5like.files.child_processes import bound_environment
from t5like.files.source_files import training_split
from t5like.files.storage import DEFAULT_ROOT
from t5like.vocabularies import Vocabulary, load_vocabulary


@dataclasses.dataclass(frozen=True)
class CachedTask:
  """A task of a mixture; a task alone is a mixture of one."""

  task: str
  cache: data.TokenCache
  rate: float = 1.0


class MustStream(UserError):
  """A task cannot be cached, because its preprocessors are random."""

  def __init__(self, task: str, why: str):
    super().__init__(f"task {task!r} can only be streamed", because=why, try_="--gin.STREAM=True (in training)")
    self.why = why


class CacheBuildFailed(UserError):
  """The process that builds a cache ended with an error."""


class TokenCaches:
  """The caches of one vocabulary under one folder."""

  def __init__(
    self,
    root: str,
    name: str,
    vocabulary: Vocabulary,
    task_modules: Sequence[str] = (),
    corpus_files: CorpusFiles | None = None,
    hint: str = "",
    lengths: Mapping[str, int] | None = None,
    evaluation: bool = False,
    pool: Callable[[Path, int, int], int] = lambda folder, size, caches: 0,
    recorded_files: Mapping[str, CorpusFiles] | None = None,
  ):
    """Sets up caches, without opening any.

    Args:
      root: the folder of all caches.
      name: the vocabulary's name or file.
      vocabulary: the vocabulary.
      task_modules: modules to import, which register tasks.
      corpus_files: files of a corpus by split, or of several (corpus_files.py).
      hint: printed if a cache must be built: where else it, or the task, may be found.
      lengths: of a row, for tasks whose finished tokens depend on them.
      evaluation: cache tasks with random preprocessors, sampled once; in training such tasks are streamed.
      pool: returns the bytes of a pool of a corpus that is to be read in place, given its folder, its size, and the
        number of caches in its mixture.
      recorded_files: files that a model directory names, by task, to tell which of several data sets of that name is
        meant; they are not read.
    """
    self._root, self._name, self._vocabulary, self._hint, self._pool = root, name, vocabulary, hint, pool
    self._lengths, self._evaluation = dict(lengths or {}), evaluation
    self._built: set[tuple[str, str]] = set()  # tasks and splits built by this object, which are up to date
    self._task_modules, self._corpus_files = list(task_modules), corpus_files or {}
    self._recorded_files = recorded_files or {}
    self._members: dict[str, dict[str, dict[str, str]]] = {}  # the files of the tasks of a mixture of corpora

  def folder(self, task: str, split: str) -> Path:
    plain = data.cache_folder(self._root, task, split, self._name, self._vocabulary.fingerprint)
    if files := self._files_of(task):
      return cache_folders.of_files(plain, task, files)
    if recorded := self._recorded_files.get(task):
      return cache_folders.as_recorded(plain, task, recorded)
    return cache_folders.by_name(plain)

  def command(self, task: str, split: str, force: bool = False) -> list[str]:
    return cache_command(
      task,
      split,
      self._name,
      self._root,
      self._task_modules,
      self._files_of(task),
      force,
      self._lengths,
      self._evaluation,
    )

  def _files_of(self, task: str) -> CorpusFiles:
    """Returns the files of a task: of all, or of its part of a mixture of corpora."""
    return next((members[task] for members in self._members.values() if task in members), self._corpus_files)

  def open(self, task: str, split: str) -> list[CachedTask] | None:
    """Returns the caches of a task's members, or None if one must be built.

    Raises:
      MustStream: the task cannot be cached.
      UserError: a cache is damaged.
    """
    rates = data.read_mixture(
      self.folder(task, split), rebuild_command=shlex.join(self.command(task, split, force=True))
    )
    if rates and self._is_changed(task, data.read_record(self.folder(task, split))):
      return None
    if are_several(self._corpus_files) and not self._has_all_corpora(task, split, rates or {}):
      return None
    caches = {name: self._open_task(name, split, len(rates or [task])) for name in rates or [task]}
    if None in caches.values():
      return None
    return [CachedTask(name, cache, rates[name] if rates else 1.0) for name, cache in caches.items()]

  def _has_all_corpora(self, task: str, split: str, rates: Mapping[str, float]) -> bool:
    """Returns whether a mixture has all corpora that have files for a split."""
    if task not in self._members:
      self._members[task] = member_files(task, self._corpus_files)
    with_files = {name for name, own in self._members[task].items() if split in own}
    registered = {name for name, own in self._members[task].items() if not own}
    return bool(rates) and with_files == rates.keys() - registered

  def _open_task(self, task: str, split: str, members: int) -> data.TokenCache | None:
    files = self._files_of(task)
    if files and split not in files:
      return None  # a cache of this name is from other files
    folder = self.folder(task, split)
    record = data.read_record(folder)
    if self._is_changed(task, record) or (record is None and self._must_check(task, split)):
      return None
    if record and record.kind == "stream" and not self._evaluation:
      raise MustStream(task, record.why)
    if record and record.kind in ("tokens", "stream"):
      folder = data.finished_folder(folder, self._lengths)
    if not folder.is_dir():
      return None
    rebuild_command = shlex.join(self.command(task, split, force=True))
    pool = 0 if self._evaluation else lambda size: self._pool(folder, size, members)
    cache = data.open_cache(folder, rebuild_command, record.scoring if record else None, pool)
    changed = data.changed_since_written(cache, self._vocabulary.fingerprint, files.get(split))
    if not changed and not self._has_labels_of_training(task, split, cache):
      changed = "its classes are those of another training split"
    if changed:
      print(f"the token cache {folder} is stale: {changed}")
      return None
    return cache

  def _has_labels_of_training(self, task: str, split: str, cache: data.TokenCache) -> bool:
    """Returns whether class ids are those of the training split, which numbers the classes of the user's own rows."""
    files, form = self._files_of(task), data.LabelForm.of(cache)
    if not files or form is None or not form.labels or (task, split) in self._built:
      return True
    if (training := training_split(files)) == split:
      return True
    numbered = self._open_task(task, training, 1)
    return data.LabelForm.of(numbered) == form if numbered else not can_build()

  def _is_changed(self, task: str, record: data.TaskRecord | None) -> bool:
    """Returns whether the code of a task or mixture has changed since its cache was written, and reports it."""
    changed = data.changed_code(record) if record else ""
    if not changed:
      return False
    own = [module for module in record.modules if not module.startswith("t5like.")]
    if own and not self._task_modules:
      raise UserError(
        f"the token cache of task {task!r} is stale: {changed}",
        try_=f"--task_modules={own[0]} (in training: --gin.TASK_MODULES), the module that registers the task",
      )
    print(f"task {task!r}: {changed} since its token cache was written", flush=True)
    return can_build()  # without TensorFlow, caches of shipped tasks are used as they are

  def _must_check(self, task: str, split: str) -> bool:
    """Returns whether to check a cache of an older version, without a task record: only for the user's tasks."""
    return bool(self._task_modules) and (task, split) not in self._built and can_build()

  def open_or_build(self, task: str, split: str) -> list[CachedTask]:
    members = self.open(task, split)
    if members is not None:
      return members
    line = self.command(task, split)
    print(f"building the token cache of {task!r} ({split}): {shlex.join(line)}", flush=True)
    if self._hint:
      print(f"  ({self._hint})", flush=True)
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as error_file:
      environment = {**bound_environment(), ERROR_FILE: error_file.name}
      status = subprocess.run([sys.executable, "-m", *line], env=environment).returncode
      if status == UserError.status:
        why = error_file.read() or "see the error above"
        raise CacheBuildFailed(f"cannot build the token cache of task {task!r} ({split})", because=why, hint=self._hint)
    self._built |= {(task, split)} | {(name, split) for name in data.read_mixture(self.folder(task, split), "") or ()}
    members = self.open(task, split) if status == 0 else None
    if members is None:
      raise UserError(f"building the token cache failed (status {status})", try_=shlex.join(line))
    return members


def token_cache(
  task: str,
  vocabulary: str = "t5",
  split: str = "train",
  *,
  root: str = DEFAULT_ROOT,
  task_modules: Sequence[str] = (),
  files: CorpusFiles | None = None,
  lengths: Mapping[str, int] | None = None,
  evaluation: bool = False,
) -> data.TokenCache:
  """Opens the token cache of a task; builds a missing or stale one first, in a separate process.

  Args:
    task: a registered task; with `files`, the name of a corpus.
    vocabulary: a vocabulary's name or file.
    split: the split of the task.
    root: the folder of all caches.
    task_modules: modules to import, which register tasks.
    files: JSON Lines or text files by split, which become the corpus `task`.
    lengths: of a row, for tasks whose preprocessors depend on them or work on tokens.
    evaluation: cache a task with random preprocessors, sampled once; otherwise it can only be streamed.

  Returns:
    The cache: `cache.examples`, `cache.tokens`, `cache.example(number)`.

  Raises:
    UserError: the task is unknown, its data is missing, it is a mixture, or it can only be streamed.
  """
  caches = TokenCaches(
    root,
    vocabulary,
    load_vocabulary(vocabulary),
    task_modules if files else modules_for([task], task_modules),
    files,
    lengths=lengths,
    evaluation=evaluation,
  )
  members = caches.open_or_build(task, split)
  if len(members) > 1 or members[0].task != task:
    names = ", ".join(member.task for member in members)
    raise UserError(f"{task!r} is a mixture: open the caches of its tasks", tasks=names)
  return members[0].cache


def can_build() -> bool:
  """Returns whether TensorFlow, which training does not need, is installed."""
  return importlib.util.find_spec("tensorflow") is not None


def cache_command(
  task: str,
  split: str,
  vocabulary: str,
  out: str,
  task_modules: Sequence[str] = (),
  files: CorpusFiles | None = None,
  force: bool = False,
  lengths: Mapping[str, int] | None = None,
  evaluation: bool = False,
) -> list[str]:
  """Returns the command line that builds a cache."""
  line = ["t5like", "cache", task, f"--vocabulary={vocabulary}", f"--split={split}", f"--out={out}"]
  line += [f"--task_modules={m}" for m in task_modules]
  line += as_options(files or {})
  line += [f"--lengths={','.join(f'{name}={n}' for name, n in lengths.items())}"] if lengths else []
  return line + ["--evaluation"] * evaluation + ["--force"] * force
