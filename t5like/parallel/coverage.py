"""Checks that a model is sharded: a missing logical axis name would replicate parameters on every device."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from t5like.errors import UserError
from t5like.parallel.mesh import describe_mesh
from t5like.parallel.presets import DEFAULT_PRESET, parameter_mesh_axes

_MAX_LISTED = 10


def check_sharded(
  params_shapes: Any, shardings: Any, mesh: Mesh | AbstractMesh, preset: str | None = None, allowed: float = 0.02
) -> None:
  """Raises UserError if more than the fraction `allowed` of a model is replicated although its preset shards it.

  Norms and biases are too small to matter. Larger arrays have lost their logical axis names, or the mesh does not fit
  the preset; this is reported here instead of running out of memory. Without a named preset, a mesh with only a `data`
  axis is plain data parallelism, in which everything may be replicated.
  """
  axes = parameter_mesh_axes(preset or DEFAULT_PRESET)
  if mesh.size == 1 or not axes or (preset is None and all(mesh.shape[axis] == 1 for axis in axes)):
    return
  sizes, replicated = {}, {}
  leaves = jax.tree.leaves_with_path(params_shapes)
  for (path, leaf), sharding in zip(leaves, jax.tree.leaves(shardings), strict=True):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    sizes[name] = math.prod(leaf.shape)
    if sharding.is_fully_replicated:
      replicated[name] = leaf.shape
  total, count = sum(sizes.values()), sum(sizes[name] for name in replicated)
  if count <= allowed * total:
    return
  largest = sorted(replicated, key=lambda name: (-sizes[name], name))
  rows = [f"{name}  {replicated[name]}  {sizes[name]:,} ({sizes[name] / total:.1%})" for name in largest[:_MAX_LISTED]]
  if len(largest) > _MAX_LISTED:
    rest = largest[_MAX_LISTED:]
    rows.append(f"and {len(rest)} more with {sum(sizes[name] for name in rest):,}")
  sharded = ", ".join(f"{axis}={mesh.shape[axis]}" for axis in sorted(axes))
  raise UserError(
    f"{count / total:.1%} of the parameters ({count:,} of {total:,}) are replicated on every device",
    preset=f"{preset or DEFAULT_PRESET}: shards parameters over {sharded}; at most {allowed:.0%} may be replicated",
    mesh=describe_mesh(mesh),
    replicated="\n".join(rows),
    try_=_suggestion(mesh, axes),
  )


def _suggestion(mesh: Mesh | AbstractMesh, axes: set[str]) -> str:
  if all(mesh.shape[axis] == 1 for axis in axes):
    axis = min(axes)  # fsdp before tensor: it can shard any model
    return " ".join(f"--gin.MESH.{name}={-1 if name == axis else 1}" for name in mesh.shape)
  if "fsdp" not in axes or mesh.shape["fsdp"] == 1:
    return "--gin.MESH.data=1 --gin.MESH.fsdp=-1 --gin.MESH.preset=fsdp_tensor: fsdp shards nearly everything"
  return "logical axis names (nn.with_logical_partitioning) for these parameters in the model"
