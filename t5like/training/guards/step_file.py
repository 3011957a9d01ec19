"""Reports the current step to the supervisor through a small local file, rewritten at every step."""

from __future__ import annotations

import os
from pathlib import Path

STEP_FILE_VARIABLE = "T5LIKE_STEP_FILE"  # path of the file, set by the supervisor


class StepFile:
  """Writes the current step for the supervisor; does nothing without one. Takes a few microseconds per step."""

  def __init__(self, model_dir: object):
    path = os.environ.get(STEP_FILE_VARIABLE)
    self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600) if path else None
    self._model_dir = str(model_dir)
    self.write(-1)

  def write(self, step: int) -> None:
    """Records that `step` has been dispatched to the devices."""
    if self._file is not None:
      os.pwrite(self._file, f"{step:20d}\n{self._model_dir}\n".encode(), 0)


def is_supervised() -> bool:
  return STEP_FILE_VARIABLE in os.environ


def read_step_file(path: Path) -> tuple[int | None, str]:
  """Returns the last step (None before the first) and the model directory ('' before one was accepted)."""
  try:
    step, model_dir = path.read_text(encoding="utf-8").splitlines()[:2]
    return (int(step) if int(step) >= 0 else None), model_dir
  except (OSError, ValueError):
    return None, ""
