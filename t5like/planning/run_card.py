"""The run card: a one-screen summary of a run, printed before it starts."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping

import jax

import t5like
from t5like import parallel


def version_numbers() -> dict[str, str]:
  names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain")
  own = {"t5like": t5like.__version__, "python": platform.python_version()}
  return own | {name: importlib.metadata.version(name) for name in names}


def versions() -> str:
  return ", ".join(f"{name} {version}" for name, version in version_numbers().items())


def devices(mesh: jax.sharding.Mesh) -> str:
  kind = mesh.devices.flat[0].device_kind
  return f"{mesh.devices.size} x {kind} on {jax.process_count()} host(s), mesh {parallel.describe_mesh(mesh)}"


def large(number: float, unit: str = "") -> str:
  """Formats a number: 1,234 as it is, larger ones as 12.3 M or 4.56 G."""
  for size, letter in ((1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
    if abs(number) >= size:
      return f"{number / size:.3g} {letter}{unit}"
  return f"{number:,.0f}{f' {unit}' if unit else ''}"


def render_run_card(entries: Mapping[str, str]) -> str:
  """Formats aligned `label  text` lines between rules; texts of several lines are indented."""
  width = max(map(len, entries))
  lines = []
  for label, text in entries.items():
    first, *rest = text.split("\n")
    lines.append(f"{label:<{width}}  {first}")
    lines.extend(f"{'':<{width}}  {line}" for line in rest)
  rule = "-" * min(100, max(map(len, lines)))
  return "\n".join([rule, *lines, rule])
