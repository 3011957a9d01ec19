"""Python modules by name: in which package one is, where its file is, whether that has changed. Nothing is imported."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
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


def is_inside(module: str, packages: Iterable[str]) -> bool:
  """Whether a module is one of these packages, or in one."""
  return any(module == package or module.startswith(f"{package}.") for package in packages)
