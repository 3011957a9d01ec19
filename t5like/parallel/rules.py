"""Which logical axis is split over which mesh axis: one table to audit.

An array takes the rules in this order, and each mesh axis once. So on activations `batch` takes
data and fsdp, and nothing is left for `embed`; on parameters, which have no batch, `embed` takes fsdp.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LOGICAL_AXIS_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
  ("batch", ("data", "fsdp")),
  ("vocab", "tensor"),
  ("mlp", "tensor"),
  ("heads", "tensor"),
  ("embed", "fsdp"),
  ("kv", None),
  ("length", None),
  ("layers", None),
)


@contextlib.contextmanager
def sharding_context(mesh: Mesh) -> Iterator[None]:
  """While active, modules traced for the first time constrain their activations by the rules."""
  with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXIS_RULES):
    yield


def parameter_shardings(boxed: Any, mesh: Mesh) -> Any:
  """Shardings for the (abstract) parameters of a Flax module with logical axis names."""
  return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, LOGICAL_AXIS_RULES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows over data and fsdp; the other axes of a batch are whole."""
  return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, PartitionSpec())


def shardings_like_parameters(tree: Any, parameters: Any, shardings: Any, mesh: Mesh) -> Any:
  """Shardings for an optimizer state: each leaf as the parameter whose path its own path ends with.

  A factored moment (Adafactor's row and column averages) lacks one axis of its parameter, and so
  does its sharding. What belongs to no parameter is replicated.
  """
  specs = {}
  flat_shardings = jax.tree.leaves(shardings)
  for (path, leaf), sharding in zip(jax.tree.leaves_with_path(parameters), flat_shardings, strict=True):
    specs[_keys(path)] = (leaf.shape, sharding.spec)

  def place(path, leaf):
    keys = _keys(path)
    for start in range(len(keys)):
      if keys[start:] in specs:
        return NamedSharding(mesh, _spec_for(leaf.shape, *specs[keys[start:]]))
    return replicated(mesh)

  return jax.tree.map_with_path(place, tree)


def _keys(path: tuple) -> tuple[str, ...]:
  return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _spec_for(shape: tuple[int, ...], parameter_shape: tuple[int, ...], spec: PartitionSpec) -> PartitionSpec:
  full = (*spec, *(None,) * (len(parameter_shape) - len(spec)))
  if shape == parameter_shape:
    return PartitionSpec(*full)
  # Several axes may have the removed size; every choice is right in shape, so the first serves.
  for axis in range(len(parameter_shape)):
    if shape == parameter_shape[:axis] + parameter_shape[axis + 1 :]:
      return PartitionSpec(*full[:axis], *full[axis + 1 :])
  return PartitionSpec()
