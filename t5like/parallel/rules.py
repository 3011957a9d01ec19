"""Shardings of parameters, optimizer state, batches and activations, by the rules of a preset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from t5like.parallel.presets import DEFAULT_PRESET, PRESETS, Rules

# In force where no preset is named.
LOGICAL_AXIS_RULES = PRESETS[DEFAULT_PRESET]


@contextlib.contextmanager
def use_preset(preset: str | None) -> Iterator[None]:
  """While active, `sharding_context` and `parameter_shardings` follow the preset; None is the default one."""
  with nn.logical_axis_rules(PRESETS[preset or DEFAULT_PRESET]):
    yield


def rules_in_force() -> Rules:
  return tuple(nn.get_logical_axis_rules()) or LOGICAL_AXIS_RULES


@contextlib.contextmanager
def sharding_context(mesh: Mesh | AbstractMesh) -> Iterator[None]:
  """While active, modules traced for the first time constrain their activations by the rules in force."""
  enter = jax.sharding.use_abstract_mesh if isinstance(mesh, AbstractMesh) else jax.set_mesh
  with enter(mesh), nn.logical_axis_rules(rules_in_force()):
    yield


def parameter_shardings(boxed: Any, mesh: Mesh | AbstractMesh) -> Any:
  """Shardings for the (abstract) parameters of a Flax module with logical axis names, by the rules in force."""
  return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, rules_in_force())


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
