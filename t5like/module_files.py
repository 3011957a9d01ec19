"""The files of Python modules, found and compared without importing anything."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def module_file(module: str) -> Path | None:
  """Where Python would find a module, which is not imported for that."""
  names = module.split(".")
  if not all(name.isidentifier() for name in names):
    return None
  parts = Path(*names)
  for folder in sys.path:
    for candidate in (Path(folder) / parts.with_suffix(".py"), Path(folder) / parts / "__init__.py"):
      if candidate.is_file():
        return candidate
  return None


def file_hash(path: Path) -> str:
  return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
