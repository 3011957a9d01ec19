"""The table of the run card that shows what a run takes from the checkpoint that it starts from."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from t5like.console import table
from t5like.training.checkpoints.arrays import stored_arrays
from t5like.training.checkpoints.folders import PARAMS
from t5like.training.checkpoints.given_parameters import Fate, GivenParameters
from t5like.training.optimizers.rules import path_text
from t5like.training.state import StateSpec

STATUSES = ("taken", "resized", "new", "left out")


def array_fates(source: Path | GivenParameters, spec: StateSpec) -> list[Fate]:
  """Returns what becomes of every parameter of the run and of the source, which was checked before."""
  wanted = {path_text(path): leaf for path, leaf in jax.tree.leaves_with_path(spec.shapes.params)}
  given = isinstance(source, GivenParameters)
  stored = source.stored if given else stored_arrays(source / PARAMS)
  planned = list(source.fates or ()) if given else []
  known = {fate.path for fate in planned if fate.status != "left out"}
  planned += [
    Fate(path, "taken" if path in stored else "new", leaf.shape) for path, leaf in wanted.items() if path not in known
  ]
  return planned + [Fate(path, "left out", leaf.shape) for path, leaf in stored.items() if path not in wanted]


def starting_text(fates: Sequence[Fate]) -> str:
  """Returns a line per group of arrays with the same fate, one line if all of them are taken as they are."""
  if not fates:
    return ""
  if all(fate.status == "taken" and not fate.note for fate in fates):
    return f"taken  all {len(fates):,} arrays"
  groups: dict[tuple[int, str, str], list[Fate]] = {}
  for fate in fates:
    # Arrays with a note are shown one by one, except that layers share a line.
    path = re.sub(r"(?<=layers_)\d+(?=/|$)", "*", fate.path) if fate.status == "resized" else _group(fate)
    groups.setdefault((STATUSES.index(fate.status), path, fate.note), []).append(fate)
  rows = [(STATUSES[status], path, _size(members), note) for (status, path, note), members in sorted(groups.items())]
  return table(rows)


def starting_data(fates: Sequence[Fate]) -> list[dict[str, Any]]:
  """Returns the table of all arrays, for run_card.json."""
  order = sorted(fates, key=lambda fate: (STATUSES.index(fate.status), fate.path))
  return [
    {"variable": fate.path, "status": fate.status, "shape": list(fate.shape)}
    | ({"note": fate.note} if fate.note else {})
    for fate in order
  ]


def _group(fate: Fate) -> str:
  """Returns the part of a model that an array belongs to, with the layer's number if that layer moved."""
  parts = fate.path.split("/")
  depth = 2 if parts[0] == "backbone" else 1
  depth += fate.status == "taken" and bool(fate.note)
  return "/".join(parts[:depth])


def _size(fates: Sequence[Fate]) -> str:
  if len(fates) == 1:
    return f"[{','.join(map(str, fates[0].shape))}]"
  return f"{len(fates):,} arrays, {sum(math.prod(fate.shape) for fate in fates):,} parameters"
