"""The parameters that train: complete variables, or some layers of a variable with a leading layer axis.

A step differentiates, and an optimizer holds state for, only what `Selection.take` returns: a tree like the parameters
in which frozen variables are `optax.MaskedNode()` (no leaf) and partly trained ones have only their trained layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5like.training.optimizers.rules import leaves_by_path, path_text, variable_paths

FROZEN = optax.MaskedNode()


@dataclasses.dataclass(frozen=True)
class Selection:
  """The trained layers by path: None for a complete variable, increasing numbers for some layers of a stacked one.

  Variables without an entry are frozen.
  """

  layers: Mapping[str, tuple[int, ...] | None]

  def __contains__(self, path: str) -> bool:
    return path in self.layers

  def take(self, tree: Any) -> Any:
    """Returns the trained part of a tree of parameters, gradients or values per layer."""
    return self._map(lambda x, layers: x if layers is None else _slice(x, layers), tree)

  def take_whole(self, tree: Any) -> Any:
    """Returns the variables that train at least partly, with all their layers; also for trees of shardings."""
    return self._map(lambda x, layers: x, tree)

  def put(self, tree: Any, trained: Any) -> Any:
    """Returns `tree` with its trained part replaced. Frozen values are passed through, bit for bit."""
    new = leaves_by_path(trained)

    def replace(path: tuple, old: Any) -> Any:
      name = path_text(path)
      if name not in self.layers:
        return old
      layers = self.layers[name]
      return new[name] if layers is None else _replace(old, layers, new[name])

    return jax.tree.map_with_path(replace, tree)

  def within(self, outer: Selection) -> Selection:
    """Returns this part of `outer`, with layers numbered as `outer.take` arranges them."""

    def numbers(path: str, layers: tuple[int, ...] | None) -> tuple[int, ...] | None:
      held = outer.layers[path]
      return layers if held is None else tuple(held.index(layer) for layer in layers)

    return Selection({path: numbers(path, layers) for path, layers in self.layers.items()})

  def without(self, other: Selection) -> Selection:
    """Returns what trains here but not in `other`."""
    rest: dict[str, tuple[int, ...] | None] = {}
    for path, layers in self.layers.items():
      if path not in other.layers:
        rest[path] = layers
      elif layers is not None and other.layers[path] is not None:
        left = tuple(layer for layer in layers if layer not in other.layers[path])
        rest |= {path: left} if left else {}
    return Selection(rest)

  def covers(self, tree: Any) -> bool:
    """Returns whether all of the tree trains."""
    return all(self.layers.get(path, ()) is None for path in variable_paths(tree))

  def _map(self, function: Callable[[Any, tuple[int, ...] | None], Any], tree: Any) -> Any:
    def choose(path: tuple, x: Any) -> Any:
      name = path_text(path)
      return function(x, self.layers[name]) if name in self.layers else FROZEN

    return jax.tree.map_with_path(choose, tree)


def is_masked(tree: Any) -> bool:
  """Returns whether a tree is the trained part of a larger one."""
  is_frozen = lambda node: isinstance(node, optax.MaskedNode)  # noqa: E731
  return any(map(is_frozen, jax.tree.leaves(tree, is_leaf=is_frozen)))


def _slice(x: Any, layers: tuple[int, ...]) -> Any:
  if np.ndim(x) == 0:  # a value for all layers
    return x
  return x[layers[0] : layers[-1] + 1] if _is_range(layers) else x[np.asarray(layers)]


def _replace(old: jax.Array, layers: tuple[int, ...], new: jax.Array) -> jax.Array:
  if not _is_range(layers):
    return old.at[np.asarray(layers)].set(new)
  # Not an update in place: the compiler can tell that a slice of this concatenation is `new`, and copies nothing.
  parts = [old[: layers[0]], new, old[layers[-1] + 1 :]]
  return jnp.concatenate([part for part in parts if part.shape[0]])


def _is_range(layers: tuple[int, ...]) -> bool:
  return layers[-1] - layers[0] + 1 == len(layers)
