"""Checkpoints: saved in the background, whole or not at all, and read again. What lies where: checkpoint_folders.py.

Orbax writes a checkpoint under another name and renames it when it is whole; on gs:// it marks it. Then, still in the
background, process 0 writes its checksums and removes the checkpoints that nobody wants kept. Orbax's names live here
and in stored_arrays.py.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from t5like.console import byte_size
from t5like.errors import RunError, UserError
from t5like.files import storage
from t5like.parallel.process_zero import run_on_process_zero
from t5like.training.checkpoints import integrity
from t5like.training.checkpoints.arrays import Unreadable, cause_of, orbax_path, read_arrays, read_nested, stored_arrays
from t5like.training.checkpoints.folders import (
  FOLDER,
  METADATA,
  PARAMS,
  TRAINING,
  check_fingerprint,
  checkpoint_metrics,
  checkpoint_steps,
  checkpoints_folder,
  clear_leftovers,
  find_checkpoint,
  fingerprint_differences,
  has_training_state,
  is_finished,
  read_fingerprint,
  read_scores,
  remove_checkpoint,
  write_scores,
)
from t5like.training.checkpoints.integrity import Newest, newest_intact
from t5like.training.checkpoints.restoring import (
  EXACTLY,
  Restore,
  check_restorable,
  damaged_error,
  optimizer_kind,
  restore_parameters,
  restore_state,
)
from t5like.training.checkpoints.retention import Keep
from t5like.training.state import StateSpec, TrainState

__all__ = [
  "FOLDER",
  "Checkpoints",
  "Keep",
  "Newest",
  "Restore",
  "SaveError",
  "check_fingerprint",
  "check_restorable",
  "check_room",
  "checkpoint_bytes",
  "checkpoint_metrics",
  "checkpoint_steps",
  "find_checkpoint",
  "fingerprint_differences",
  "has_training_state",
  "load_parameters",
  "newest_intact",
  "read_fingerprint",
  "restore_parameters",
  "restore_state",
  "save_parameters",
]


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _SaidOnce(logging.Filter):
  """A save that fails is logged with its traceback by every thread and task of Orbax that took part, and raised too."""

  def filter(self, record: logging.LogRecord) -> bool:
    return not (record.exc_info and {"orbax", "asyncio"} & set(Path(record.pathname).parts))


_SAID_ONCE = _SaidOnce()


class SaveError(RunError):
  """A checkpoint could not be written. The run has to end; the checkpoints before are whole."""


class Checkpoints:
  """The checkpoints of one model directory, for its sole trainer. To be made and called by all processes."""

  def __init__(self, model_dir: str | Path, keep: Keep | int = 3):
    """`keep`: a policy, or a number: so many newest."""
    self.folder = checkpoints_folder(model_dir)
    self._keep = Keep(last=keep) if isinstance(keep, int) else keep
    run_on_process_zero(self._prepare_folder)
    self._checkpointer = _checkpointer()
    for name in ("absl", "asyncio"):  # Orbax's
      logging.getLogger(name).addFilter(_SAID_ONCE)
    self._thread: threading.Thread | None = None
    self._error: SaveError | None = None

  def latest_step(self) -> int | None:
    return max(checkpoint_steps(self.folder.parent), default=None)

  def best_step(self) -> int | None:
    """By the metric that checkpoints are kept by; None without one."""
    return next(iter(self._keep.best_steps(checkpoint_metrics(self.folder.parent))), None)

  def save(self, state: TrainState, fingerprint: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> bool:
    """Returns when the arrays are copied; the writing goes on behind the next steps. False: this step is saved.

    Waits for the save before this one. `metrics` are remembered, to keep the best.
    """
    self.wait()
    step, needed = int(state.step), checkpoint_bytes(state)
    if run_on_process_zero(lambda: self._is_saved_or_has_room(step, needed)):
      return False
    if jax.process_index() == 0:
      scores = read_scores(self.folder)
      kept = {noted: scores[noted] for noted in scores if noted < step}  # the others are of steps that are done again
      if kept != scores:
        write_scores(self.folder, kept)
    metrics = {name: float(value) for name, value in (metrics or {}).items()}
    training = {"step": state.step, "opt_state": state.opt_state, "seed": state.seed}
    items = {
      PARAMS: ocp.args.StandardSave(state.params),
      TRAINING: ocp.args.StandardSave(training),
      METADATA: ocp.args.JsonSave(
        {"fingerprint": dict(fingerprint), "optimizer": optimizer_kind(state.opt_state), "metrics": metrics}
      ),
    }
    try:
      self._checkpointer.save(orbax_path(self.folder / str(step)), args=ocp.args.Composite(**items))
    except Exception as error:
      self._fail(step, needed, error)
      self.raise_errors()
    self._thread = threading.Thread(target=self._finish, args=(step, needed), name=f"save-{step}")
    self._thread.start()
    return True

  def note_scores(self, step: int, scores: Mapping[str, float]) -> None:
    """Remembers what an evaluation says of a checkpoint that is saved already, and keeps or removes others by it."""
    self.wait()
    if jax.process_index() == 0 and is_finished(self.folder / str(step)):
      known = read_scores(self.folder)
      values = {name: float(value) for name, value in scores.items()}
      write_scores(self.folder, known | {step: known.get(step, {}) | values})
      self._remove_unwanted()

  def raise_errors(self) -> None:
    """Raises what a save in the background has raised; costs nothing, so that a loop calls it at every step."""
    if self._error is not None:
      error, self._error = self._error, None
      raise error

  def wait(self) -> None:
    """Until the last save has ended; raises its error."""
    if self._thread is not None:
      self._thread.join()
      self._thread = None
    self.raise_errors()

  def restore(
    self,
    spec: StateSpec,
    fingerprint: Mapping[str, Any],
    step: int | None = None,
    options: Restore = EXACTLY,
    fresh: Callable[[], TrainState] | None = None,
    verified: bool = False,
  ) -> TrainState:
    """The state of `step` (the newest), as `restore_state` gives it. Damage is an error: see `newest_intact`."""
    self.wait()
    checkpoint = find_checkpoint(self.folder.parent, step)
    return restore_state(checkpoint, spec, fingerprint, options, fresh, verified)

  def close(self) -> None:
    """Waits for the last save; an error in the background that was not raised yet is raised here."""
    try:
      self.wait()
    finally:
      self._checkpointer.close()

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
    """An interpreter that ends cuts a save short, so that a failing run waits for its last one, too."""
    try:
      self.close()
    except SaveError as second:
      if error is None:
        raise
      error.add_note(f"and {second}")

  def _prepare_folder(self) -> int:
    try:
      self.folder.mkdir(parents=True, exist_ok=True)
      clear_leftovers(self.folder)
    except OSError as error:
      raise UserError(
        "checkpoints cannot be written", folder=self.folder, because=error.strerror or str(error)
      ) from None
    return 0

  def _is_saved_or_has_room(self, step: int, needed: int) -> bool:
    if is_finished(self.folder / str(step)):
      return True
    try:
      check_room(self.folder, needed)
    except UserError as error:
      raise SaveError(f"checkpoint {step} was not written: {error.what}", **error.lines, **self._whole()) from None
    return False

  def _finish(self, step: int, needed: int) -> None:
    """The save's last part, in the background."""
    try:
      self._checkpointer.wait_until_finished()
      if jax.process_index() == 0:
        integrity.write_checksums(self.folder / str(step))
        self._remove_unwanted()
    except BaseException as error:
      self._fail(step, needed, error)

  def _remove_unwanted(self) -> None:
    present = checkpoint_metrics(self.folder.parent)  # from the disk: others may have taken some away
    for unwanted in set(present) - self._keep.kept(present):
      remove_checkpoint(self.folder / str(unwanted))

  def _fail(self, step: int, needed: int, error: BaseException) -> None:
    cause, free = cause_of(error), _free_bytes(self.folder)  # before the half-written files are gone
    full = free < needed or any(os.strerror(number) in cause for number in _FULL)
    if jax.process_count() == 1:  # others may still write; the next start clears up then
      with contextlib.suppress(OSError):
        clear_leftovers(self.folder)
    self._error = SaveError(
      f"checkpoint {step} could not be written",
      folder=self.folder,
      because=cause,
      disk=f"{byte_size(free)} were free when it failed; a checkpoint needs {byte_size(needed)}" if full else "",
      **self._whole(),
      try_="make room, or keep fewer checkpoints; then the same command" if full else "",
    )
    self._error.__cause__ = error

  def _whole(self) -> dict[str, str]:
    steps = checkpoint_steps(self.folder.parent)
    return {"whole": f"checkpoint {steps[-1]}: the same command goes on from there" if steps else "none before it"}


def save_parameters(
  model_dir: str | Path, params: Any, step: int = 0, fingerprint: Mapping[str, Any] | None = None
) -> Path:
  """Writes a checkpoint without optimizer state, as conversion makes it."""
  checkpoint = checkpoints_folder(model_dir) / str(step)
  checkpoint.parent.mkdir(parents=True, exist_ok=True)
  clear_leftovers(checkpoint.parent)
  with contextlib.closing(_checkpointer()) as checkpointer:
    items = {
      PARAMS: ocp.args.StandardSave(params),
      METADATA: ocp.args.JsonSave({"fingerprint": dict(fingerprint or {})}),
    }
    checkpointer.save(orbax_path(checkpoint), args=ocp.args.Composite(**items))
  if jax.process_index() == 0:
    integrity.write_checksums(checkpoint)
  return checkpoint


def load_parameters(
  source: str | Path,
  step: int | None = None,
  fingerprint: Mapping[str, Any] | None = None,
  average: bool = False,
) -> Any:
  """Parameters as numpy arrays, from a model directory (its newest step) or one checkpoint folder.

  With `average`, their moving average, which the optimizer state of a run with ema_decay holds. A run may go on
  writing meanwhile: where it removes the checkpoint that is being read, the newest is taken instead.
  """
  while True:
    checkpoint = find_checkpoint(source, step)
    try:
      return _load(checkpoint, fingerprint, average)
    except UserError:
      if checkpoint.exists() or find_checkpoint(source, step) == checkpoint:
        raise


def check_room(model_dir: str | Path, bytes_needed: int) -> None:
  """Refuses to begin where a checkpoint would not fit on the disk."""
  free = _free_bytes(storage.as_path(model_dir).absolute())
  if free < bytes_needed:
    raise UserError(
      "the disk has no room for a checkpoint",
      folder=model_dir,
      free=byte_size(free),
      needed=byte_size(bytes_needed),
      try_="make room, or another --gin.MODEL_DIR=...",
    )


def checkpoint_bytes(state: TrainState) -> int:
  """The size of a checkpoint of this state, or of its shapes, but for a few kilobytes."""
  return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(state))


def _load(checkpoint: Path, fingerprint: Mapping[str, Any] | None, average: bool) -> Any:
  items = (PARAMS, METADATA, TRAINING) if average else (PARAMS, METADATA)
  if integrity.has_checksums(checkpoint) and (damage := integrity.check_sums(checkpoint, items)):
    raise damaged_error(checkpoint, damage)
  if fingerprint is not None:
    check_fingerprint(read_fingerprint(checkpoint), fingerprint, checkpoint)
  try:
    return _averaged(checkpoint) if average else read_nested(checkpoint / PARAMS)
  except Unreadable as error:
    raise damaged_error(checkpoint, str(error)) from error


def _averaged(checkpoint: Path) -> Any:
  """The moving average in the types of the parameters: it lies at `.../average/<path>` beside a `.../count`."""
  params = stored_arrays(checkpoint / PARAMS)
  training = stored_arrays(checkpoint / TRAINING) if has_training_state(checkpoint) else {}
  some = f"/average/{next(iter(params))}"
  places = [path.removesuffix(some) for path in training if path.endswith(some)]
  places = [p for p in places if f"{p}/count" in training and all(f"{p}/average/{path}" in training for path in params)]
  if not places:
    raise UserError(
      "this checkpoint has no moving average of the parameters",
      checkpoint=checkpoint,
      try_="a run with ema_decay of the optimizer, such as 0.999",
    )
  arrays = read_arrays(checkpoint / TRAINING, {f"{places[0]}/average/{path}": None for path in params})
  nested: dict[str, Any] = {}
  for path, stored in params.items():
    *parents, name = path.split("/")
    node = nested
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = arrays[f"{places[0]}/average/{path}"].astype(stored.dtype)
  return nested


def _checkpointer() -> ocp.AsyncCheckpointer:
  # Folders are made before save returns: one that cannot be made is an error at once.
  return ocp.AsyncCheckpointer(
    ocp.CompositeCheckpointHandler(), async_options=ocp.AsyncOptions(create_directories_asynchronously=False)
  )


def _free_bytes(path: Path) -> float:
  if storage.is_remote(path):
    return math.inf
  while not path.exists():
    path = path.parent
  return shutil.disk_usage(path).free
