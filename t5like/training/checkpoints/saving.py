"""Saves checkpoints atomically and in the background, and loads their parameters. For the layout see folders.py.

Orbax writes a checkpoint under a temporary name and renames it when it is complete; on gs:// it adds a marker. Then,
still in the background, process 0 writes checksums and removes the checkpoints that are not retained. Only this file
and arrays.py use Orbax.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import traverse_util

import t5like.training.checkpoints.integrity as integrity
from t5like.console import byte_size
from t5like.errors import RunError, UserError
from t5like.files import storage
from t5like.files.system_errors import as_os_error
from t5like.parallel.process_zero import run_on_process_zero
from t5like.training.checkpoints.arrays import Unreadable, cause_of, orbax_path, read_arrays, read_nested, stored_arrays
from t5like.training.checkpoints.folders import (
  METADATA,
  PARAMS,
  TRAINING,
  check_fingerprint,
  checkpoint_metrics,
  checkpoint_steps,
  checkpoints_folder,
  clear_leftovers,
  find_checkpoint,
  has_training_state,
  is_finished,
  read_fingerprint,
  read_scores,
  remove_checkpoint,
  write_scores,
)
from t5like.training.checkpoints.restoring import damaged_error, optimizer_kind, training_part
from t5like.training.checkpoints.retention import CheckpointRetention
from t5like.training.state import TrainState


class _WithoutOrbaxTracebacks(logging.Filter):
  """Drops tracebacks of a failed save: every thread and task of Orbax logs its own, and the error is raised anyway."""

  def filter(self, record: logging.LogRecord) -> bool:
    return not (record.exc_info and {"orbax", "asyncio"} & set(Path(record.pathname).parts))


_WITHOUT_ORBAX_TRACEBACKS = _WithoutOrbaxTracebacks()


class SaveError(RunError):
  """A checkpoint could not be written. The run must end; earlier checkpoints are intact."""


class Checkpoints:
  """The checkpoints of a model directory, for its sole trainer. Must be created and called by all processes."""

  def __init__(self, model_dir: str | Path, retention: CheckpointRetention | int = 3):
    """Takes a retention policy, or the number of newest checkpoints to keep."""
    self.folder = checkpoints_folder(model_dir)
    self._retention = CheckpointRetention(last=retention) if isinstance(retention, int) else retention
    run_on_process_zero(self._prepare_folder)
    self._checkpointer = _checkpointer()
    self._thread: threading.Thread | None = None
    self._error: SaveError | None = None

  def save(self, state: TrainState, fingerprint: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> bool:
    """Saves a state, in the background once its arrays are copied; returns False if this step is already saved.

    Waits for the previous save. `metrics` are stored with the checkpoint and decide which are the best.
    """
    self.wait()
    step, needed = int(state.step), checkpoint_bytes(state)
    if run_on_process_zero(lambda: self._is_saved_or_has_room(step, needed)):
      return False
    if jax.process_index() == 0:
      scores = read_scores(self.folder)
      earlier = {scored: scores[scored] for scored in scores if scored < step}  # later steps are being trained again
      if earlier != scores:
        write_scores(self.folder, earlier)
    metrics = {name: float(value) for name, value in (metrics or {}).items()}
    items = {
      PARAMS: ocp.args.StandardSave(state.params),
      TRAINING: ocp.args.StandardSave(training_part(state)),
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

  def record_scores(self, step: int, scores: Mapping[str, float]) -> None:
    """Records the scores of a saved checkpoint and applies the retention policy."""
    self.wait()
    if jax.process_index() == 0 and is_finished(self.folder / str(step)):
      known = read_scores(self.folder)
      values = {name: float(value) for name, value in scores.items()}
      write_scores(self.folder, known | {step: known.get(step, {}) | values})
      self._apply_retention()

  def raise_errors(self) -> None:
    """Raises the error of a background save, if any; cheap enough to be called at every step."""
    if self._error is not None:
      error, self._error = self._error, None
      raise error

  def wait(self) -> None:
    """Waits for the last save and raises its error."""
    if self._thread is not None:
      self._thread.join()
      self._thread = None
    self.raise_errors()

  def close(self) -> None:
    """Waits for the last save and raises its error."""
    try:
      self.wait()
    finally:
      self._checkpointer.close()

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
    """Waits for the last save even if the run has failed: the end of the interpreter would cut it short."""
    try:
      self.close()
    except SaveError as second:
      if error is None:
        raise
      error.add_note(f"and {second}")

  def _prepare_folder(self) -> None:
    try:
      self.folder.mkdir(parents=True, exist_ok=True)
      clear_leftovers(self.folder)
    except OSError as error:
      raise UserError(
        "checkpoints cannot be written", folder=self.folder, because=error.strerror or str(error)
      ) from None

  def _is_saved_or_has_room(self, step: int, needed: int) -> bool:
    if is_finished(self.folder / str(step)):
      return True
    try:
      check_disk_space(self.folder, needed)
    except UserError as error:
      lines = error.lines | self._last_intact()
      raise SaveError(f"checkpoint {step} was not written: {error.what}", **lines) from None
    return False

  def _finish(self, step: int, needed: int) -> None:
    """Completes a save: runs in the background."""
    try:
      self._checkpointer.wait_until_finished()
      if jax.process_index() == 0:
        integrity.write_checksums(self.folder / str(step))
        self._apply_retention()
    except BaseException as error:
      self._fail(step, needed, error)

  def _apply_retention(self) -> None:
    present = checkpoint_metrics(self.folder.parent)  # from the disk: some may have been removed by others
    for step in set(present) - self._retention.steps_to_keep(present):
      remove_checkpoint(self.folder / str(step))

  def _fail(self, step: int, needed: int, error: BaseException) -> None:
    cause, free = cause_of(error), storage.free_bytes(self.folder)  # before the half-written files are removed
    full = free < needed or any(os.strerror(number) in cause for number in storage.DISK_FULL)
    disk = f"{byte_size(free)} free when it failed; a checkpoint needs {byte_size(needed)}"
    if not storage.has_free_files(self.folder):
      disk = "it had room for no more files when it failed: all inodes are in use"
    if jax.process_count() == 1:  # others may still write; the next start clears leftovers
      with contextlib.suppress(OSError):
        clear_leftovers(self.folder)
    self._error = SaveError(
      f"checkpoint {step} could not be written",
      folder=self.folder,
      because=cause,
      disk=disk if full else "",
      **self._last_intact(),
      try_="free some space or keep fewer checkpoints, then repeat the command" if full else "",
    )
    self._error.__cause__ = error

  def _last_intact(self) -> dict[str, str]:
    steps = checkpoint_steps(self.folder.parent)
    return {"intact": f"checkpoint {steps[-1]}: the same command resumes from there" if steps else "none before it"}


def save_parameters(
  model_dir: str | Path, params: Any, step: int = 0, fingerprint: Mapping[str, Any] | None = None
) -> Path:
  """Writes a checkpoint without optimizer state, as `t5like convert` does, and returns its folder.

  Raises OSError if that is not possible, such as on a full disk.
  """
  checkpoint = checkpoints_folder(model_dir) / str(step)
  checkpoint.parent.mkdir(parents=True, exist_ok=True)
  clear_leftovers(checkpoint.parent)
  free, needed = storage.free_bytes(checkpoint.parent), checkpoint_bytes(params)
  if free < needed:
    full = os.strerror(errno.ENOSPC)
    raise OSError(errno.ENOSPC, f"{full}: {byte_size(free)} free, {byte_size(needed)} needed")
  with as_os_error(), contextlib.closing(_checkpointer()) as checkpointer:
    items = {
      PARAMS: ocp.args.StandardSave(params),
      METADATA: ocp.args.JsonSave({"fingerprint": dict(fingerprint or {})}),
    }
    checkpointer.save(orbax_path(checkpoint), args=ocp.args.Composite(**items))
  if jax.process_index() == 0:
    integrity.write_checksums(checkpoint)
  return checkpoint


def best_step(model_dir: str | Path, retention: CheckpointRetention) -> int | None:
  """Returns the step of the best checkpoint by the metric of a retention policy; None without one."""
  best = retention.best_steps(checkpoint_metrics(model_dir)) if retention.metric else []
  return best[0] if best else None


def load_parameters(
  source: str | Path,
  step: int | None = None,
  fingerprint: Mapping[str, Any] | None = None,
  average: bool = False,
) -> Any:
  """Returns parameters as numpy arrays, from a model directory (its newest step) or a checkpoint folder.

  With `average`, returns their moving average, from the optimizer state of a run with ema_decay. A run may still be
  writing: if it removes the checkpoint that is being read, the newest one is read instead.
  """
  while True:
    checkpoint = find_checkpoint(source, step)
    try:
      return _load(checkpoint, fingerprint, average)
    except UserError:
      if checkpoint.exists() or find_checkpoint(source, step) == checkpoint:
        raise


def check_disk_space(model_dir: str | Path, bytes_needed: int) -> None:
  """Raises UserError if a checkpoint would not fit on the disk."""
  free = storage.free_bytes(storage.as_path(model_dir).absolute())
  if free < bytes_needed:
    raise UserError(
      "not enough disk space for a checkpoint",
      folder=model_dir,
      free=byte_size(free),
      needed=byte_size(bytes_needed),
      try_="free some space, or another --gin.MODEL_DIR=...",
    )


def checkpoint_bytes(state: Any) -> int:
  """Returns the size of a checkpoint of this state or these parameters (arrays or shapes), to a few kilobytes."""
  return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(state))


def _load(checkpoint: Path, fingerprint: Mapping[str, Any] | None, average: bool) -> Any:
  items = (PARAMS, METADATA, TRAINING) if average else (PARAMS, METADATA)
  if integrity.has_checksums(checkpoint) and (damage := integrity.verify_checksums(checkpoint, items)):
    raise damaged_error(checkpoint, damage)
  if fingerprint is not None:
    check_fingerprint(read_fingerprint(checkpoint), fingerprint, checkpoint)
  try:
    return _averaged(checkpoint) if average else read_nested(checkpoint / PARAMS)
  except Unreadable as error:
    raise damaged_error(checkpoint, str(error)) from error


def _averaged(checkpoint: Path) -> Any:
  """Reads the moving average, stored at `.../average/<path>` next to `.../count`, in the parameters' dtypes."""
  params = stored_arrays(checkpoint / PARAMS)
  training = stored_arrays(checkpoint / TRAINING) if has_training_state(checkpoint) else {}
  # Frozen parameters have no average: it would be their value.
  ends = {f"/average/{path}" for path in params}
  places = {path[: -len(end)] for path in training for end in ends if path.endswith(end)}
  places = sorted(place for place in places if f"{place}/count" in training)
  if not places:
    raise UserError(
      "this checkpoint has no moving average of the parameters",
      checkpoint=checkpoint,
      try_="a run whose optimizer has ema_decay, such as 0.999",
    )
  averaged = {path: f"{places[0]}/average/{path}" for path in params if f"{places[0]}/average/{path}" in training}
  arrays = read_arrays(checkpoint / TRAINING, dict.fromkeys(averaged.values()))
  frozen = [path for path in params if path not in averaged]
  values = {path: arrays[place] for path, place in averaged.items()}
  values |= read_arrays(checkpoint / PARAMS, dict.fromkeys(frozen)) if frozen else {}
  return traverse_util.unflatten_dict(
    {path: values[path].astype(stored.dtype) for path, stored in params.items()}, sep="/"
  )


def _checkpointer() -> ocp.AsyncCheckpointer:
  for name in ("absl", "asyncio"):  # used by Orbax
    logging.getLogger(name).addFilter(_WITHOUT_ORBAX_TRACEBACKS)
  # Creates folders before save returns, so that a folder that cannot be created is an error at once.
  return ocp.AsyncCheckpointer(
    ocp.CompositeCheckpointHandler(), async_options=ocp.AsyncOptions(create_directories_asynchronously=False)
  )
