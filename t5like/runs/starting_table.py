"""The table of the run card that shows what a run takes from the checkpoint that it starts from."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5like.console import table
from t5like.training.checkpoints.arrays import stored_arrays
from t5like.training.checkpoints.folders import PARAMS
from t5like.training.checkpoints.given_parameters import ArrayUse, GivenParameters
from t5like.training.optimizers.rules import leaves_by_path
from t5like.training.state import StateSpec

STATUSES = ("taken", "resized", "new", "left out")


def array_uses(source: Path | GivenParameters, spec: StateSpec) -> list[ArrayUse]:
  """Returns what becomes of every parameter of the run and of the source, which was checked before."""
  wanted = leaves_by_path(spec.shapes.params)
  given = isinstance(source, GivenParameters)
  stored = source.stored if given else stored_arrays(source / PARAMS)
  planned = list(source.uses or ()) if given else []
  known = {use.path for use in planned if use.status != "left out"}
  planned += [
    ArrayUse(path, "taken" if path in stored else "new", leaf.shape)
    for path, leaf in wanted.items()
    if path not in known
  ]
  return planned + [ArrayUse(path, "left out", leaf.shape) for path, leaf in stored.items() if path not in wanted]


def starting_text(uses: Sequence[ArrayUse]) -> str:
  """Returns a line per group of arrays with the same use, one line if all of them are taken as they are."""
  if not uses:
    return ""
  if all(use.status == "taken" and not use.note for use in uses):
    return f"taken  all {len(uses):,} arrays"
  groups: dict[tuple[int, str, str], list[ArrayUse]] = {}
  for use in uses:
    # Arrays with a note are shown one by one, except that layers share a line.
    path = re.sub(r"(?<=layers_)\d+(?=/|$)", "*", use.path) if use.status == "resized" else _group(use)
    groups.setdefault((STATUSES.index(use.status), path, use.note), []).append(use)
  rows = [(STATUSES[status], path, _size(members), note) for (status, path, note), members in sorted(groups.items())]
  return table(rows)


def starting_data(uses: Sequence[ArrayUse]) -> list[dict[str, Any]]:
  """Returns the table of all arrays, for run_card.json."""
  order = sorted(uses, key=lambda use: (STATUSES.index(use.status), use.path))
  return [
    {"variable": use.path, "status": use.status, "shape": list(use.shape)} | ({"note": use.note} if use.note else {})
    for use in order
  ]


def _group(use: ArrayUse) -> str:
  """Returns the part of a model that an array belongs to, with the layer's number if that layer moved."""
  parts = use.path.split("/")
  depth = 2 if parts[0] == "backbone" else 1
  depth += use.status == "taken" and bool(use.note)
  return "/".join(parts[:depth])


def _size(uses: Sequence[ArrayUse]) -> str:
  if len(uses) == 1:
    return f"[{','.join(map(str, uses[0].shape))}]"
  return f"{len(uses):,} arrays, {sum(math.prod(use.shape) for use in uses):,} parameters"
