"""Shardings of parameters, optimizer state, batches and activations under the rules of a preset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from t5like.parallel.presets import DEFAULT_PRESET, PRESETS, Rules, with_experts

# Used if no preset is given.
LOGICAL_AXIS_RULES = PRESETS[DEFAULT_PRESET]


@contextlib.contextmanager
def use_preset(preset: str | None) -> Iterator[None]:
  """Makes `sharding_context` and `parameter_shardings` use a preset while active; None: the default preset."""
  with nn.logical_axis_rules(PRESETS[preset or DEFAULT_PRESET]):
    yield


def active_rules() -> Rules:
  """Returns the rules of the preset in use."""
  return tuple(nn.get_logical_axis_rules()) or LOGICAL_AXIS_RULES


def _rules_for(mesh: Mesh | AbstractMesh) -> Rules:
  return with_experts(active_rules(), "expert" in mesh.axis_names)


@contextlib.contextmanager
def sharding_context(mesh: Mesh | AbstractMesh) -> Iterator[None]:
  """Makes modules constrain their activations by the active rules when they are first traced."""
  enter = jax.sharding.use_abstract_mesh if isinstance(mesh, AbstractMesh) else jax.set_mesh
  with enter(mesh), nn.logical_axis_rules(_rules_for(mesh)):
    yield


def parameter_shardings(boxed: Any, mesh: Mesh | AbstractMesh) -> Any:
  """Returns shardings for the (abstract) parameters of a Flax module with logical axis names, by the active rules."""
  return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, _rules_for(mesh))


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of a batch: rows over data, fsdp and expert, other axes not sharded."""
  return NamedSharding(mesh, PartitionSpec(tuple(axis for axis in mesh.axis_names if axis != "tensor")))


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, PartitionSpec())


def shardings_like_parameters(tree: Any, parameters: Any, shardings: Any, mesh: Mesh) -> Any:
  """Returns shardings for an optimizer state: each leaf is sharded like the parameter whose path ends its own path.

  A factored moment (Adafactor's row and column averages) lacks one axis of its parameter, and so
  does its sharding. The leading axis may be shorter, where only some layers train. Leaves that belong to no parameter
  are replicated.
  """
  specs = {}
  flat_shardings = jax.tree.leaves(shardings)
  for (path, leaf), sharding in zip(jax.tree.leaves_with_path(parameters), flat_shardings, strict=True):
    specs[_keys(path)] = (leaf.shape, sharding.spec)

  def sharding_of(path, leaf):
    keys = _keys(path)
    for start in range(len(keys)):
      if keys[start:] in specs:
        return NamedSharding(mesh, _spec_for(leaf.shape, *specs[keys[start:]]))
    return replicated(mesh)

  return jax.tree.map_with_path(sharding_of, tree)


def _keys(path: tuple) -> tuple[str, ...]:
  return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _spec_for(shape: tuple[int, ...], parameter_shape: tuple[int, ...], spec: PartitionSpec) -> PartitionSpec:
  full = (*spec, *(None,) * (len(parameter_shape) - len(spec)))
  if shape == parameter_shape:
    return PartitionSpec(*full)
  # Several axes may have the removed size; any of them gives a valid sharding, so take the first.
  for axis in range(len(parameter_shape)):
    if shape == parameter_shape[:axis] + parameter_shape[axis + 1 :]:
      return PartitionSpec(*full[:axis], *full[axis + 1 :])
  # The state of some layers of a stacked parameter, where the others are frozen.
  if shape and parameter_shape and full[0] is None and shape[0] < parameter_shape[0]:
    return _spec_for(shape, (shape[0], *parameter_shape[1:]), spec)
  return PartitionSpec()
