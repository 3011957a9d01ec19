"""The tasks and rates of a mixture, stored next to the tasks' token caches so that training needs no registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from t5like.errors import UserError
from t5like.files import storage

FILE = "mixture.json"


def write_mixture(folder: Path, rates: Mapping[str, float]) -> None:
  """Writes the rates of a mixture's tasks atomically."""
  text = json.dumps({"rates": dict(rates)}, indent=1) + "\n"
  with storage.write_errors("the mixture", folder=folder):
    storage.write_atomic(folder / FILE, text)


def read_mixture(folder: Path, rebuild_command: str) -> dict[str, float] | None:
  """Returns the rates of the tasks, or None if the folder is not a mixture's; `rebuild_command` is for errors."""
  path = folder / FILE
  if not path.is_file():
    return None
  try:
    return {str(task): float(rate) for task, rate in storage.read_json(path)["rates"].items()}
  except (ValueError, KeyError, TypeError, AttributeError):
    raise UserError("the mixture file is corrupt", file=path, try_=rebuild_command) from None
