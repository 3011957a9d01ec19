"""What a task was when its token cache was written, beside the cache: is it still the same?

Nothing here knows seqio: a run looks at the files of the modules, and only where one has changed is seqio asked.
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
  kind: str  # what is kept of the task: see t5like/tasks/caching/cache_kind.py
  why: str  # the text alone does not do; empty where it does
  modules: Mapping[str, str]  # the hash of each module that the task is made of, by name
  libraries: Mapping[str, str]  # their versions
  scoring: Mapping[str, Any]  # postprocessor and metrics

  def write(self, folder: Path) -> None:
    text = json.dumps(dataclasses.asdict(self), indent=1) + "\n"
    try:
      folder.mkdir(parents=True, exist_ok=True)
      storage.write_whole(folder / FILE, text)
    except OSError as error:
      raise UserError("the record of a task could not be written", folder=folder, because=error.strerror) from error


def read_record(folder: Path) -> TaskRecord | None:
  """None where there is none, as beside caches of earlier versions, or where it cannot be read."""
  path = folder / FILE
  try:
    found = storage.read_json(path)
    record = TaskRecord(**{field.name: found[field.name] for field in dataclasses.fields(TaskRecord)})
    sound = record.kind in KINDS and isinstance(record.why, str) and isinstance(record.scoring, Mapping)
    sound = sound and all(isinstance(part, Mapping) for part in (record.modules, record.libraries))
    return record if sound else None
  except (OSError, ValueError, KeyError, TypeError, UserError):
    return None


def changed_code(record: TaskRecord) -> str:
  """What of a task's code is not as it was; '' where nothing is, as far as it is found on this machine."""
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
      return f"{library} {known} has become {found}"
  return ""
