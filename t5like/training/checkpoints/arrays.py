"""The arrays of a checkpoint's item, by path ('a/b/c'): which there are, and those that are wanted.

Orbax's handler is used directly: it reads without waiting for other processes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from t5like.files import storage
from t5like.training.optimizers.rules import path_text

_SYSTEM_ERROR = re.compile(r"(?:os_error_code=\W*|OS error )(\d+)")  # as TensorStore tells it, after long paths
_TRIAL_BYTES = 2**30  # read at a time where nothing is kept
_BEYOND = 1e20  # no parameter, mean or second moment of a run that trains is larger


class Unreadable(Exception):
  """An item cannot be read: its files are damaged, or gone."""


@contextlib.contextmanager
def _unreadable() -> Iterator[None]:
  """Damaged files raise whatever JSON, TensorStore and Orbax come upon; too small a device is another story."""
  try:
    yield
  except (MemoryError, jax.errors.JaxRuntimeError):
    raise
  except Exception as error:
    raise Unreadable(cause_of(error)) from error


def orbax_path(path: Path) -> Any:
  """As Orbax takes it: its own kind of path for a store."""
  return epath.Path(str(path)) if storage.is_remote(path) else path


def cause_of(error: BaseException) -> str:
  """Enough of an error's cause to print: TensorStore's go on for pages."""
  while error.__cause__ is not None:
    error = error.__cause__
  if found := _SYSTEM_ERROR.search(str(error)):
    return os.strerror(int(found.group(1)))
  return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def stored_arrays(item: Path) -> dict[str, jax.ShapeDtypeStruct]:
  """Shape and type of every array, from the item's list of contents: no array is read."""
  leaves, _ = _contents(item)
  return {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves.items()}


def read_arrays(item: Path, wanted: Mapping[str, jax.ShapeDtypeStruct | None]) -> dict[str, Any]:
  """The wanted arrays: as numpy where None is given, else in its type and straight onto its sharding's devices."""
  leaves, tree = _contents(item)
  items = [0 if path in wanted else ocp.PLACEHOLDER for path in leaves]
  arguments = [_arguments(wanted.get(path)) for path in leaves]
  request = ocp.args.PyTreeRestore(item=tree.unflatten(items), restore_args=tree.unflatten(arguments))
  with _unreadable(), contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    restored = handler.restore(orbax_path(item), args=request)
  arrays = dict(zip(leaves, tree.flatten_up_to(restored), strict=True))
  return {path: arrays[path] for path in wanted}


def read_nested(item: Path) -> Any:
  """All arrays as numpy, in nested dicts."""
  leaves, tree = _contents(item)
  arrays = read_arrays(item, dict.fromkeys(leaves))
  return tree.unflatten([arrays[path] for path in leaves])


def try_reading(item: Path) -> None:
  """Reads every array and drops it, not many at a time; raises Unreadable where one cannot be, or holds nonsense.

  Bytes that changed on the disk may still unpack: to numbers that no training gives.
  """
  for group in _groups(stored_arrays(item)):
    for path, array in read_arrays(item, dict.fromkeys(group)).items():
      if jax.dtypes.issubdtype(array.dtype, np.floating) and not np.all(np.abs(array.astype(np.float32)) < _BEYOND):
        raise Unreadable(f"{path} holds numbers that are not finite, or beyond {_BEYOND:g}")


def _groups(arrays: Mapping[str, jax.ShapeDtypeStruct]) -> Iterator[list[str]]:
  group, size = [], 0
  for path, array in arrays.items():
    if group and size + array.size * array.dtype.itemsize > _TRIAL_BYTES:
      yield group
      group, size = [], 0
    group.append(path)
    size += array.size * array.dtype.itemsize
  yield group


def _contents(item: Path) -> tuple[dict[str, Any], Any]:
  with _unreadable(), contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    leaves, tree = jax.tree_util.tree_flatten_with_path(handler.metadata(orbax_path(item)).tree)
  if not leaves:
    raise Unreadable("its list of arrays is empty")
  return {path_text(path): leaf for path, leaf in leaves}, tree


def _arguments(target: jax.ShapeDtypeStruct | None) -> ocp.RestoreArgs:
  if target is None:
    return ocp.RestoreArgs(restore_type=np.ndarray)
  return ocp.ArrayRestoreArgs(
    restore_type=jax.Array, dtype=target.dtype, sharding=target.sharding, global_shape=target.shape
  )
