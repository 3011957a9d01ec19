"""Initial parameters that do not come from a t5like checkpoint, or that were adapted to another model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class ArrayUse:
  """The use of an array: "taken" or "resized" from the source, "new" in the run, "left out" of it."""

  path: str
  status: str
  shape: tuple[int, ...]
  note: str = ""


@dataclasses.dataclass(frozen=True)
class SourceModel:
  """Known facts about the model that parameters belong to; None: unknown."""

  head: Any = None  # a module of models/heads
  vocabulary: Any = None  # a Vocabulary


class GivenParameters:
  """Numpy arrays by path. Every host reads all of them and keeps the shards of its own devices.

  They are held from the check before compilation to the start of the run, and read again if they are needed later.
  """

  def __init__(
    self,
    source: str,
    fingerprint: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None,
    read: Callable[[], Mapping[str, np.ndarray]],
    advice: str,
    stored: Mapping[str, jax.ShapeDtypeStruct] | None = None,
    uses: Sequence[ArrayUse] | None = None,
    known: Callable[[], SourceModel] | None = None,
  ):
    """Takes the arrays and a function that reads them again.

    Args:
      source: a description for messages, such as 'the T5X checkpoint /models/t5'.
      fingerprint: of their model and vocabulary.
      arrays: by path; None: `read` them later.
      read: returns `arrays` again.
      advice: the `try` line of the error for a model that does not match.
      stored: shapes and dtypes of the arrays, if `arrays` is None.
      uses: what becomes of each array; those that are "new" need not be in `arrays`.
      known: returns the head and the vocabulary of their model, to adapt them to another one.
    """
    self.source, self.fingerprint, self.advice = source, dict(fingerprint), advice
    self.uses, self.known = uses, known
    self.new = frozenset(use.path for use in uses or () if use.status == "new")
    self.stored = dict(stored or {})
    if arrays is not None:
      self.stored = {path: jax.ShapeDtypeStruct(array.shape, array.dtype) for path, array in arrays.items()}
    self._held: Mapping[str, np.ndarray] | None = arrays
    self._read_again = read

  def __str__(self) -> str:
    return self.source

  def take(self) -> Mapping[str, np.ndarray]:
    """Returns the arrays, and does not hold them any longer."""
    arrays, self._held = self._held if self._held is not None else self._read_again(), None
    return arrays

  def place(self, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Returns the wanted arrays with their dtypes and shardings, and releases the numpy arrays."""
    arrays = self.take()

    def part(path: str, target: jax.ShapeDtypeStruct) -> jax.Array:
      return jax.make_array_from_callback(
        target.shape, target.sharding, lambda at: arrays[path][at].astype(target.dtype)
      )

    return {path: part(path, target) for path, target in wanted.items()}
