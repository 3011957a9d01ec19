"""A record of a task's code and scoring, stored next to its token cache to detect changes.

Needs no seqio: a run compares the modules' files, and loads seqio only if one has changed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.module_files import file_hash, module_file

FILE = "task.json"
KINDS = ("text", "tokens", "stream", "mixture")


@dataclasses.dataclass(frozen=True)
class TaskRecord:
  kind: str  # what is cached: see t5like/tasks/caching/cache_kind.py
  why: str  # why caching the text is not enough, or ''
  modules: Mapping[str, str]  # the hash of each module the task uses, by name
  libraries: Mapping[str, str]  # versions by name
  scoring: Mapping[str, Any]  # postprocessor and metrics

  def write(self, folder: Path) -> None:
    text = json.dumps(dataclasses.asdict(self), indent=1) + "\n"
    with storage.write_errors("the task record", folder=folder):
      storage.write_atomic(folder / FILE, text)


def read_record(folder: Path) -> TaskRecord | None:
  """Returns the record of a cache, or None if it is missing (older versions wrote none) or invalid."""
  path = folder / FILE
  try:
    found = storage.read_json(path)
    record = TaskRecord(**{field.name: found[field.name] for field in dataclasses.fields(TaskRecord)})
    valid = record.kind in KINDS and isinstance(record.why, str) and isinstance(record.scoring, Mapping)
    valid = valid and all(isinstance(part, Mapping) for part in (record.modules, record.libraries))
    return record if valid else None
  except (OSError, ValueError, KeyError, TypeError, UserError):
    return None


def changed_code(record: TaskRecord) -> str:
  """Returns which module or library of a task has changed, or ''; those not installed here are skipped."""
  for module, known in record.modules.items():
    path = module_file(module)
    if path is not None and file_hash(path) != known:
      return f"the module {module} has changed"
  for library, known in record.libraries.items():
    try:
      found = metadata.version(library)
    except metadata.PackageNotFoundError:
      continue  # training needs none of them
    if found != known:
      return f"the version of {library} has changed from {known} to {found}"
  return ""
