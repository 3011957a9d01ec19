"""Checks the model directory of a run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from t5like.errors import UserError
from t5like.files import storage
from t5like.training.guards.run_lock import LOCK

CONFIG = "config.gin"
CHECKPOINTS = "checkpoints"
RUN_CARD = "run_card.txt"
RUN_CARD_DATA = "run_card.json"
DATA_SETTINGS = "data_settings.json"
OWN_TARGETS = "own_targets"  # in DATA_SETTINGS: the run's tasks, if the targets of all have their own vocabulary
SUPERVISOR = "supervisor"  # .jsonl: the supervisor's decisions


def check_model_dir(path: str | Path) -> Path:
  """Returns the absolute path if a run may write there, else raises UserError. Creates nothing."""
  storage.check_reachable(path, "MODEL_DIR")
  folder = storage.as_path(path).absolute()
  if folder.exists() and not folder.is_dir():
    raise UserError(f"MODEL_DIR is a file: {folder}", try_="another --gin.MODEL_DIR=...")
  found = sorted(path.name for path in folder.iterdir() if not _is_left_by_killed_run(path)) if folder.is_dir() else []
  if found and CONFIG not in found:
    raise UserError(
      f"MODEL_DIR has other files: {folder}",
      found=", ".join(found[:5]),
      expected=f"an empty or new folder, or one of an earlier run (with {CONFIG})",
      try_="another --gin.MODEL_DIR=...",
    )
  if storage.is_remote(folder):
    return folder  # the lock, its first object, shows whether it can be written
  existing = folder
  while not existing.exists():
    existing = existing.parent
  try:
    with tempfile.TemporaryFile(dir=existing):
      pass
  except OSError as error:
    raise UserError(f"MODEL_DIR cannot be written: {folder}", because=f"{existing}: {error.strerror}") from None
  return folder


def _is_left_by_killed_run(path: Path) -> bool:
  """Whether a run that was killed before it wrote its configuration leaves such a file or folder."""
  if path.name == CHECKPOINTS:
    return path.is_dir() and not any(path.iterdir())
  return path.name.startswith((LOCK, SUPERVISOR, f"{CONFIG}."))
