"""Metrics to Weights & Biases, where it is installed and asked for."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from t5like.errors import UserError
from t5like.files import storage
from t5like.training.records.model_dir import write_text

ID_FILE = "wandb_run_id"


class WandbWriter:
  """One W&B run for one model directory, through all restarts; on the first host only.

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
        "Weights & Biases is not installed", try_="pip install wandb, or leave it out: --gin.WANDB_PROJECT=''"
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
    # Evaluations of a step come after its training row, and a resumed run does some steps again: W&B's own counter
    # only goes up, so the step is a value like the others, and the axis of them all.
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
  """The id that this directory's run has, or from now on has."""
  path = model_dir / ID_FILE
  if path.is_file() and (known := path.read_text(encoding="utf-8").strip()):
    return known
  fresh = secrets.token_hex(4)
  write_text(path, fresh + "\n")
  return fresh
