"""The folders of token caches: one per task, vocabulary and split, and for the user's own files one per files.

ROOT/snli/tiny-1a2b3c4d/train
ROOT/films_classification/tiny-1a2b3c4d-5e6f7a8b/train    two data sets of one name do not share a folder

Earlier versions left the files out of the name. Their caches are used as long as they are of the same files.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.data.cache import read_manifest
from t5like.data.task_record import FILE as RECORD
from t5like.errors import UserError
from t5like.experiments.corpus_files import ROW_FORMS, CorpusFiles, are_several
from t5like.files import storage
from t5like.files.source_files import changed_file, other_files


def of_files(plain: Path, task: str, files: CorpusFiles) -> Path:
  """Returns the folder of a task with its own files, to read and to write; `plain` is the one without their names."""
  own = _own(plain, task, files)
  if own.is_dir() or not plain.is_dir():
    return own
  if are_several(files):
    return plain  # their tasks are checked one by one
  sources = _sources(plain)
  current = sources and not changed_file(sources) and not other_files(sources, files.get(plain.name, ""))
  return plain if current else own


def as_recorded(plain: Path, task: str, files: CorpusFiles) -> Path:
  """Returns the folder to read, given files that a model directory names: they are compared by name, never opened."""
  own = _own(plain, task, files)
  if own.is_dir() or not plain.is_dir():
    return own
  if are_several(files):
    return plain
  pattern = str(files.get(plain.name, "")).rpartition("/")[2]
  names = [str(source["path"]).rpartition("/")[2] for source in _sources(plain)]
  return plain if len(fnmatch.filter(names, pattern)) == len(names) else own


def by_name(plain: Path) -> Path:
  """Returns the folder to read if only the task's name is known; raises UserError if there are several data sets."""
  if plain.is_dir():
    return plain
  found = [Path(path).parent for path in storage.matching(f"{plain.parent}-????????/{plain.name}/{RECORD}")]
  if len(found) > 1:
    raise UserError(
      f"{len(found)} data sets have the name {plain.parent.parent.name!r} ({plain.name})",
      files="; ".join(sorted(", ".join(source["path"] for source in _sources(folder)[:3]) for folder in found)),
      try_="their files: CORPUS_FILES in training, --files of t5like eval",
    )
  return storage.as_path(found[0]) if found else plain


def _own(plain: Path, task: str, files: CorpusFiles) -> Path:
  # The training split numbers the classes of rows; a corpus is not tokenized again because another split was added.
  whole = are_several(files) or task.endswith(ROW_FORMS)
  named = files if whole else {plain.name: files.get(plain.name)}
  digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]
  return plain.parent.with_name(f"{plain.parent.name}-{digest}") / plain.name


def _sources(folder: Path) -> Sequence[Mapping[str, Any]]:
  """Returns the source files of a cache; () if it is damaged."""
  try:
    return read_manifest(folder, "")[0]["description"]["source_files"]
  except (UserError, OSError, KeyError, TypeError):
    return ()
