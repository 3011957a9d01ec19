"""Compares the arrays of a checkpoint with those of a run and summarizes the differences."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp

_MOST_LINES = 8


@dataclasses.dataclass(frozen=True)
class StructureDifference:
  """Descriptions of the arrays that differ, by path."""

  missing: dict[str, str]  # only in the run
  unexpected: dict[str, str]  # only in the checkpoint
  other: dict[str, str]  # in both, with another shape or dtype

  def __bool__(self) -> bool:
    return bool(self.missing or self.unexpected or self.other)

  def without(self, missing: Iterable[str], unexpected: Iterable[str]) -> StructureDifference:
    return StructureDifference(
      {path: text for path, text in self.missing.items() if path not in missing},
      {path: text for path, text in self.unexpected.items() if path not in unexpected},
      self.other,
    )

  def lines(self) -> dict[str, str]:
    """Returns the lines of an error message, without empty ones."""
    parts = {"missing": self.missing, "unexpected": self.unexpected, "other shape": self.other}
    return {name: summarize(paths) for name, paths in parts.items() if paths}


def compare(
  stored: Mapping[str, jax.ShapeDtypeStruct], wanted: Mapping[str, jax.ShapeDtypeStruct], widen: bool = False
) -> StructureDifference:
  """Compares two structures. With `widen`, a wider float dtype than the stored one is not a difference."""
  return StructureDifference(
    {path: _text(wanted[path]) for path in wanted if path not in stored},
    {path: _text(stored[path]) for path in stored if path not in wanted},
    {
      path: f"saved {_text(stored[path])}, now {_text(wanted[path])}"
      for path in wanted
      if path in stored and not _fits(stored[path], wanted[path], widen)
    },
  )


def summarize(paths: Mapping[str, str]) -> str:
  """Returns lines of 'path  description'; equal layers share a line, and so do neighbors where there are many."""
  groups = _group(paths, lambda path: re.sub(r"(?<=layers_)\d+(?=/|$)", "*", path), with_text=True)
  depth = max((key.count("/") for key, _ in groups), default=0)
  while len(groups) > _MOST_LINES and depth > 0:
    groups = _group(paths, lambda path, depth=depth: _prefix(path, depth), with_text=False)
    depth -= 1
  shown = dict(sorted(groups.items())[:_MOST_LINES])
  width = max(len(path) for path, _ in shown)
  lines = [f"{path:<{width}}  {_count(text, members)}".rstrip() for (path, text), members in shown.items()]
  hidden = sum(map(len, groups.values())) - sum(map(len, shown.values()))
  return "\n".join([*lines, *([f"and {hidden} more"] if hidden else [])])


def _group(paths: Mapping[str, str], shorten, with_text: bool) -> dict[tuple[str, str], list[str]]:
  groups: dict[tuple[str, str], list[str]] = {}
  for path, text in paths.items():
    groups.setdefault((shorten(path), text if with_text else ""), []).append(path)
  return groups


def _prefix(path: str, depth: int) -> str:
  parts = path.split("/")
  return path if len(parts) <= depth else "/".join(parts[:depth]) + "/..."


def _count(text: str, members: list[str]) -> str:
  if len(members) == 1:
    return text
  return f"{text}  ({len(members)} variables)" if text else f"{len(members)} variables"


def _text(array: jax.ShapeDtypeStruct) -> str:
  return f"{jnp.dtype(array.dtype).name}[{','.join(map(str, array.shape))}]"


def _fits(stored: jax.ShapeDtypeStruct, wanted: jax.ShapeDtypeStruct, widen: bool) -> bool:
  if tuple(stored.shape) != tuple(wanted.shape):
    return False
  if stored.dtype == wanted.dtype:
    return True
  floats = jnp.issubdtype(stored.dtype, jnp.floating) and jnp.issubdtype(wanted.dtype, jnp.floating)
  with jax.numpy_dtype_promotion("standard"):
    return widen and floats and jnp.promote_types(stored.dtype, wanted.dtype) == wanted.dtype
