"""Checkpoints: all of Orbax's names live here.

`MODEL_DIR/checkpoints/<step>/` holds three items: `params`, `training` (step, optimizer state,
seed; absent from converted models) and `metadata` (fingerprint of the model and vocabulary). Orbax
writes a checkpoint under another name and renames it when it is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from t5like.errors import UserError
from t5like.training.state import StateSpec, TrainState

FOLDER = "checkpoints"


class Checkpoints:
  """The checkpoints of one model directory; saves in the background."""

  def __init__(self, model_dir: str | Path, keep: int = 3):
    self.folder = Path(model_dir).expanduser().absolute() / FOLDER
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
    self._manager = ocp.CheckpointManager(self.folder, options=options)

  def latest_step(self) -> int | None:
    return self._manager.latest_step()

  def save(self, state: TrainState, fingerprint: Mapping[str, Any]) -> None:
    """Returns when the arrays are copied; the writing goes on behind the next steps."""
    step = int(state.step)
    if step == self.latest_step():
      return
    self._manager.save(
      step,
      args=ocp.args.Composite(
        params=ocp.args.StandardSave(state.params),
        training=ocp.args.StandardSave({"step": state.step, "opt_state": state.opt_state, "seed": state.seed}),
        metadata=ocp.args.JsonSave({"fingerprint": dict(fingerprint)}),
      ),
    )

  def restore(self, spec: StateSpec, fingerprint: Mapping[str, Any]) -> TrainState:
    """The newest state, onto the devices and shardings of `spec`."""
    step = self.latest_step()
    check_fingerprint(read_fingerprint(self.folder / str(step)), fingerprint, self.folder / str(step))
    shapes, shardings = spec.shapes, spec.shardings
    training = {"step": shapes.step, "opt_state": shapes.opt_state, "seed": shapes.seed}
    placed = {"step": shardings.step, "opt_state": shardings.opt_state, "seed": shardings.seed}
    try:
      restored = self._manager.restore(
        step,
        args=ocp.args.Composite(
          params=ocp.args.StandardRestore(_abstract(shapes.params, shardings.params)),
          training=ocp.args.StandardRestore(_abstract(training, placed)),
        ),
      )
    except (ValueError, KeyError, FileNotFoundError) as error:
      raise _unreadable(self.folder / str(step), error) from error
    return TrainState(params=restored["params"], **restored["training"])

  def close(self) -> None:
    """Waits for the last save; an error in the background is raised here."""
    self._manager.wait_until_finished()
    self._manager.close()


def save_parameters(
  model_dir: str | Path, params: Any, step: int = 0, fingerprint: Mapping[str, Any] | None = None
) -> Path:
  """Writes a checkpoint without optimizer state, as conversion makes it."""
  folder = Path(model_dir).expanduser().absolute() / FOLDER
  with ocp.CheckpointManager(folder) as manager:
    manager.save(
      step,
      args=ocp.args.Composite(
        params=ocp.args.StandardSave(params), metadata=ocp.args.JsonSave({"fingerprint": dict(fingerprint or {})})
      ),
    )
  return folder / str(step)


def load_parameters(source: str | Path, step: int | None = None, fingerprint: Mapping[str, Any] | None = None) -> Any:
  """Parameters as numpy arrays, from a model directory (its newest step) or one checkpoint folder."""
  folder = find_checkpoint(source, step)
  if fingerprint is not None:
    check_fingerprint(read_fingerprint(folder), fingerprint, folder)
  try:
    with ocp.PyTreeCheckpointer() as checkpointer:
      metadata = checkpointer.metadata(folder / "params").item_metadata
      if metadata is None:
        raise ValueError("its list of arrays is missing or unreadable")
      arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata.tree)
      return checkpointer.restore(folder / "params", args=ocp.args.PyTreeRestore(restore_args=arguments))
  except (ValueError, KeyError, FileNotFoundError) as error:
    raise _unreadable(folder, error) from error


def checkpoint_steps(model_dir: str | Path) -> list[int]:
  """The steps of a model directory's whole checkpoints, oldest first."""
  return sorted(int(p.name) for p in (Path(model_dir) / FOLDER).glob("*") if p.name.isdigit())


def has_training_state(checkpoint: Path) -> bool:
  """False for converted models, which have parameters only."""
  return (checkpoint / "training").is_dir()


def find_checkpoint(source: str | Path, step: int | None = None) -> Path:
  """The folder of one checkpoint, given it or the model directory above it."""
  path = Path(source).expanduser().absolute()
  if (path / "params").is_dir():
    return path
  steps = checkpoint_steps(path)
  if not steps:
    raise UserError(
      "no checkpoint here", looked=path / FOLDER, expected="a model directory, or its checkpoints/<step> folder"
    )
  if step is not None and step not in steps:
    raise UserError(f"no checkpoint of step {step}", looked=path / FOLDER, known=", ".join(map(str, steps)))
  return path / FOLDER / str(steps[-1] if step is None else step)


def read_fingerprint(folder: Path) -> dict[str, Any]:
  try:
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
      return checkpointer.restore(folder / "metadata")["fingerprint"]
  except (ValueError, KeyError, FileNotFoundError) as error:
    raise _unreadable(folder, error) from error


def check_fingerprint(saved: Mapping[str, Any], current: Mapping[str, Any], folder: Path) -> None:
  """Refuses a checkpoint of another model or vocabulary, naming every field that differs.

  A converted checkpoint may not know its vocabulary (None): then any is taken.
  """
  unknown = {"vocabulary"} if saved.get("vocabulary", "") is None else set()
  differing = [k for k in sorted({*saved, *current} - unknown) if saved.get(k) != current.get(k)]
  if differing:
    width = max(map(len, differing))
    raise UserError(
      "this checkpoint belongs to another model or vocabulary",
      checkpoint=folder,
      differs="\n".join(f"{k:<{width}}  saved {saved.get(k)!r}, now {current.get(k)!r}" for k in differing),
      try_="another MODEL_DIR, or the gin files the checkpoint was made with (its config.gin)",
    )


def _abstract(shapes: Any, shardings: Any) -> Any:
  return jax.tree.map(lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes, shardings)


def _unreadable(folder: Path, error: Exception) -> UserError:
  return UserError(
    "the checkpoint cannot be read: it is damaged or of another structure",
    checkpoint=folder,
    because=str(error).split("\n")[0][:300],
    try_="move it away; the run then goes on from the checkpoint before it",
  )
