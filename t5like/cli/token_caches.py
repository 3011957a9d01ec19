"""Opens the token caches of a task or mixture, and has them built where they are missing.

Building needs TensorFlow, training must not: it happens in a process of its own.
"""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from t5like import data
from t5like.cli.cache import command
from t5like.cli.child_processes import bound_to_this_process
from t5like.cli.main import BAD_INPUT
from t5like.errors import UserError
from t5like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Member:
  """A task of a mixture; a task alone is a mixture of one."""

  task: str
  cache: data.TokenCache
  rate: float = 1.0


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
  ):
    """`hint` is printed where a cache must be built: how it, or the task, may be found elsewhere."""
    self._root, self._name, self._vocabulary, self._hint = root, name, vocabulary, hint
    self._task_modules, self._corpus_files = list(task_modules), corpus_files

  def folder(self, task: str, split: str) -> Path:
    return data.cache_folder(self._root, task, split, self._name, self._vocabulary.fingerprint)

  def command(self, task: str, split: str, force: bool = False) -> list[str]:
    return command(task, split, self._name, self._root, self._task_modules, self._corpus_files, force)

  def open(self, task: str, split: str) -> list[Member] | None:
    """What is there and current, None if something must be built; a damaged cache is an error."""
    rates = data.read_mixture(self.folder(task, split), mend=shlex.join(self.command(task, split, force=True)))
    caches = {name: self._open_task(name, split) for name in rates or [task]}
    if None in caches.values():
      return None
    return [Member(name, cache, rates[name] if rates else 1.0) for name, cache in caches.items()]

  def _open_task(self, task: str, split: str) -> data.TokenCache | None:
    folder = self.folder(task, split)
    if not folder.is_dir():
      return None
    cache = data.open_cache(folder, mend=shlex.join(self.command(task, split, force=True)))
    changed = data.changed_since_written(cache, self._vocabulary.fingerprint)
    if changed:
      print(f"the token cache {folder} is stale: {changed}")
      return None
    return cache

  def open_or_build(self, task: str, split: str) -> list[Member]:
    members = self.open(task, split)
    if members is not None:
      return members
    line = self.command(task, split)
    print(f"no token cache of {task!r} ({split}) yet: {shlex.join(line)}", flush=True)
    if self._hint:
      print(f"  ({self._hint})", flush=True)
    status = subprocess.run([sys.executable, "-m", *line], env=bound_to_this_process()).returncode
    if status == BAD_INPUT:
      raise SystemExit(BAD_INPUT)  # the builder has said why
    members = self.open(task, split) if status == 0 else None
    if members is None:
      raise UserError(f"the token cache could not be built (status {status})", try_=shlex.join(line))
    return members
