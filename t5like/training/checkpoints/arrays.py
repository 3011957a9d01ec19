"""Lists and reads the arrays of a checkpoint item, by path ('a/b/c').

Uses Orbax's handler directly, which reads without a barrier across processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from t5like.files import storage
from t5like.files.system_errors import error_code, root_cause
from t5like.training.optimizers.rules import path_text

_TRIAL_BYTES = 2**30  # read at a time by `check_readable`
_MAX_PLAUSIBLE = 1e20  # parameters and moments of a run that trains are far smaller


class Unreadable(Exception):
  """An item cannot be read: its files are damaged or missing."""


@contextlib.contextmanager
def _unreadable() -> Iterator[None]:
  """Turns any error into Unreadable, as damaged files raise many kinds; running out of memory is left as it is."""
  try:
    yield
  except (MemoryError, jax.errors.JaxRuntimeError):
    raise
  except Exception as error:
    raise Unreadable(cause_of(error)) from error


def orbax_path(path: Path) -> Any:
  """Returns the path in the type that Orbax expects: epath for an object store."""
  return epath.Path(str(path)) if storage.is_remote(path) else path


def cause_of(error: BaseException) -> str:
  """Returns an error's root cause in one line: TensorStore's messages fill pages."""
  error = root_cause(error)
  if code := error_code(error):
    return os.strerror(code)
  return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def stored_arrays(item: Path) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns shape and dtype of every array from the item's metadata, without reading arrays."""
  leaves, _ = _contents(item)
  return {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves.items()}


def read_arrays(item: Path, wanted: Mapping[str, jax.ShapeDtypeStruct | None]) -> dict[str, Any]:
  """Returns the wanted arrays: numpy for None, else with the given dtype, directly on the sharding's devices."""
  leaves, tree = _contents(item)
  items = [0 if path in wanted else ocp.PLACEHOLDER for path in leaves]
  arguments = [_arguments(wanted.get(path)) for path in leaves]
  request = ocp.args.PyTreeRestore(item=tree.unflatten(items), restore_args=tree.unflatten(arguments))
  with _unreadable(), contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    restored = handler.restore(orbax_path(item), args=request)
  arrays = dict(zip(leaves, tree.flatten_up_to(restored), strict=True))
  return {path: arrays[path] for path in wanted}


def read_nested(item: Path) -> Any:
  """Returns all arrays as numpy, in nested dicts."""
  leaves, tree = _contents(item)
  arrays = read_arrays(item, dict.fromkeys(leaves))
  return tree.unflatten([arrays[path] for path in leaves])


def check_readable(item: Path) -> None:
  """Reads every array, a few at a time; raises Unreadable for one that cannot be read or has implausible values.

  Corrupted bytes may still decompress, to values that no training run produces.
  """
  for group in _groups(stored_arrays(item)):
    for path, array in read_arrays(item, dict.fromkeys(group)).items():
      floats = jax.dtypes.issubdtype(array.dtype, np.floating)
      if floats and not np.all(np.abs(array.astype(np.float32)) < _MAX_PLAUSIBLE):
        raise Unreadable(f"{path} has values that are not finite, or above {_MAX_PLAUSIBLE:g}")


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
