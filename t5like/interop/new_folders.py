"""New folders of converted and saved models, which appear complete or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.locks import LockHeld, describe_holder, hold
from t5like.parallel.process_zero import run_on_process_zero

_UNFINISHED = ".t5like-unfinished"
_LAST = ("config.json", "config.gin", "adapter_config.json")  # without them, a folder cannot be loaded
_STALE_AFTER_SECONDS, _HEARTBEAT = 3600.0, 60.0


def new_folder(path: str | Path) -> Path:
  """Returns the path of a folder to write to; raises UserError if it is not empty."""
  if not isinstance(path, str | os.PathLike) or not str(path):
    raise UserError(f"not a path: {path!r}", expected="a folder, as text or Path")
  storage.check_reachable(path, "target")
  target = storage.as_path(path).absolute()
  if target.exists() and (not target.is_dir() or any(_UNFINISHED not in found.name for found in target.iterdir())):
    raise UserError(f"{target} is not empty", expected="a new folder (convert never overwrites)")
  return target


@contextlib.contextmanager
def complete_folder(target: Path, in_place: bool = False) -> Iterator[Path]:
  """Yields a temporary folder that becomes `target` if the block succeeds, on all processes.

  An error removes it. What a killed process has left is removed by the next call for the same target.

  in_place: on a store, yields `target` itself, because Orbax writes checkpoints for a store in another form.
  """
  is_remote = storage.is_remote(target)
  with contextlib.ExitStack() as stack:
    stack.enter_context(storage.write_errors("the model", folder=target, try_="free some space, or another folder"))
    if is_remote:
      fresh = target if in_place else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="t5like-")))
    else:
      # A folder that is there may be mounted, or a shell's: it is not replaced.
      fresh = target / _UNFINISHED if target.exists() else target.with_name(target.name + _UNFINISHED)
      run_on_process_zero(lambda: _start(fresh, target, stack))
    try:
      yield fresh
      run_on_process_zero(lambda: _finish(fresh, target))
    except BaseException:
      if jax.process_count() == 1:  # others may still write
        _remove(target if is_remote else fresh)
      raise


def _start(fresh: Path, target: Path, stack: contextlib.ExitStack) -> None:
  lock = fresh.with_name(f"{fresh.name}.lock")
  try:
    stack.enter_context(hold(lock, _STALE_AFTER_SECONDS, heartbeat=_HEARTBEAT))
  except LockHeld as other:
    raise UserError(
      f"another process is writing {target}",
      holder=describe_holder(other.holder),
      try_="wait for it, or another folder",
    ) from None
  if fresh.exists():
    storage.remove_tree(fresh)
  fresh.mkdir(exist_ok=True)


def _remove(folder: Path) -> None:
  """Removes a folder; after an error, threads of TensorStore may still write to it for a moment."""
  for _ in range(20):
    storage.remove_tree(folder, ignore_errors=True)
    time.sleep(0.1)
    if not folder.exists():
      return


def _finish(fresh: Path, target: Path) -> None:
  if storage.is_remote(target):
    if fresh != target:
      storage.upload_tree(fresh, target, last=next((name for name in _LAST if (fresh / name).is_file()), ""))
  elif fresh.parent == target:
    for entry in sorted(fresh.iterdir(), key=lambda entry: entry.name in _LAST):
      entry.rename(target / entry.name)
    fresh.rmdir()
  else:
    fresh.rename(target)
