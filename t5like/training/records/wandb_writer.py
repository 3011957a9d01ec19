"""Writes metrics to Weights & Biases, if it is installed and WANDB_PROJECT is set."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from t5like.errors import UserError
from t5like.files import storage

ID_FILE = "wandb_run_id"


class WandbWriter:
  """Writes to one W&B run per model directory, across restarts; on process 0 only.

  WANDB_MODE=offline in the environment keeps everything below `model_dir`/wandb until `wandb sync`.
  """

  def __init__(self, model_dir: Path, project: str, name: str | None = None, config: Mapping[str, Any] | None = None):
    self._run = None
    if jax.process_index() != 0:
      return
    try:
      import wandb
    except ImportError:
      raise UserError(
        "Weights & Biases is not installed", try_="pip install wandb, or disable it: --gin.WANDB_PROJECT=''"
      ) from None
    model_dir.mkdir(parents=True, exist_ok=True)
    try:
      self._run = wandb.init(
        project=project,
        name=name or model_dir.name,
        id=_run_id(model_dir),
        resume="allow",
        dir=tempfile.mkdtemp(prefix="t5like-wandb-") if storage.is_remote(model_dir) else str(model_dir),
        config=dict(config or {}),
      )
    except wandb.Error as error:
      raise UserError(
        f"Weights & Biases cannot be reached: {error}",
        try_="wandb login, or WANDB_MODE=offline in the environment",
      ) from None
    # W&B's step counter only increases, but evaluations follow the training row of a step and a resumed run repeats
    # some steps: so the step is an ordinary value and the x-axis of all others.
    self._run.define_metric("step")
    self._run.define_metric("*", step_metric="step")

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
    if self._run is not None:
      self._run.log({"step": step, **{f"{kind}/{name}": value for name, value in values.items()}})

  def close(self) -> None:
    if self._run is not None:
      self._run.finish()
      self._run = None


def _run_id(model_dir: Path) -> str:
  """Returns the W&B run id of this directory, creating it if needed."""
  path = model_dir / ID_FILE
  if path.is_file() and (known := path.read_text(encoding="utf-8").strip()):
    return known
  fresh = secrets.token_hex(4)
  storage.write_atomic(path, fresh + "\n")
  return fresh
