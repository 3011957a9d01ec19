"""Opens the token cache of a task, and has it built where it is missing.

Building needs TensorFlow, training must not: it happens in a process of its own.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from t5like import data
from t5like.cli.cache import command
from t5like.cli.main import BAD_INPUT
from t5like.errors import UserError
from t5like.vocabularies import Vocabulary


class TokenCaches:
  """The caches of one vocabulary under one folder."""

  def __init__(self, root: str, name: str, vocabulary: Vocabulary, task_modules: Sequence[str] = ()):
    self._root, self._name, self._vocabulary = root, name, vocabulary
    self._task_modules = list(task_modules)

  def folder(self, task: str, split: str) -> Path:
    return data.cache_folder(self._root, task, split, self._name, self._vocabulary.fingerprint)

  def command(self, task: str, split: str, force: bool = False) -> list[str]:
    return command(task, split, self._name, self._root, self._task_modules, force)

  def open(self, task: str, split: str) -> data.TokenCache | None:
    """The cache if it is there and current, None if it must be built; a damaged one is an error."""
    folder = self.folder(task, split)
    if not folder.is_dir():
      return None
    cache = data.open_cache(folder, mend=shlex.join(self.command(task, split, force=True)))
    changed = data.changed_since_written(cache, self._vocabulary.fingerprint)
    if changed:
      print(f"the token cache {folder} is stale: {changed}")
      return None
    return cache

  def open_or_build(self, task: str, split: str) -> data.TokenCache:
    cache = self.open(task, split)
    if cache is not None:
      return cache
    line = self.command(task, split)
    print(f"no token cache of {task!r} ({split}) yet: {shlex.join(line)}", flush=True)
    status = subprocess.run([sys.executable, "-m", *line]).returncode
    if status == BAD_INPUT:
      raise SystemExit(BAD_INPUT)  # the builder has said why
    cache = self.open(task, split) if status == 0 else None
    if cache is None:
      raise UserError(f"the token cache could not be built (status {status})", try_=shlex.join(line))
    return cache
