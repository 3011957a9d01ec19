"""The package, file and hash of Python modules, by name and without importing them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path


def module_file(module: str) -> Path | None:
  """Returns the file of a module without importing it, or None."""
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


def is_inside(module: str, packages: Iterable[str]) -> bool:
  """Returns whether a module is one of these packages, or inside one."""
  return any(module == package or module.startswith(f"{package}.") for package in packages)
