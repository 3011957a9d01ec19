"""Initial parameters that do not come from a t5like checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np


class GivenParameters:
  """Numpy arrays by path. Every host reads all of them and keeps the shards of its own devices.

  They are held from the check before compilation to the start of the run, and read again if they are needed later.
  """

  def __init__(
    self,
    source: str,
    fingerprint: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    read: Callable[[], Mapping[str, np.ndarray]],
    advice: str,
  ):
    """Takes the arrays and a function that reads them again.

    Args:
      source: a description for messages, such as 'the T5X checkpoint /models/t5'.
      fingerprint: of their model and vocabulary.
      arrays: by path.
      read: returns `arrays` again.
      advice: the `try` line of the error for a model that does not match.
    """
    self.source, self.fingerprint, self.advice = source, dict(fingerprint), advice
    self.stored = {path: jax.ShapeDtypeStruct(array.shape, array.dtype) for path, array in arrays.items()}
    self._held: Mapping[str, np.ndarray] | None = arrays
    self._read_again = read

  def __str__(self) -> str:
    return self.source

  def place(self, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Returns the wanted arrays with their dtypes and shardings, and releases the numpy arrays."""
    arrays, self._held = self._held if self._held is not None else self._read_again(), None

    def part(path: str, target: jax.ShapeDtypeStruct) -> jax.Array:
      return jax.make_array_from_callback(
        target.shape, target.sharding, lambda at: arrays[path][at].astype(target.dtype)
      )

    return {path: part(path, target) for path, target in wanted.items()}
