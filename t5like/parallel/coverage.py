"""Is the model really split, or does a forgotten axis name leave it whole on every device?"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from t5like.errors import UserError
from t5like.parallel.mesh import describe_mesh
from t5like.parallel.presets import DEFAULT_PRESET, parameter_axes_of

_SHOWN = 10


def check_sharded(
  params_shapes: Any, shardings: Any, mesh: Mesh | AbstractMesh, preset: str | None = None, allowed: float = 0.02
) -> None:
  """Refuses a model of which more than `allowed` is whole on every device although it was to be split.

  Norms and biases are too small to matter. What is larger has lost its logical axis, or its preset is on a
  mesh that it does not fit, and is found out here instead of by running out of memory. Without a named preset,
  a mesh with only a `data` axis is plain data parallelism, and all may be whole.
  """
  axes = parameter_axes_of(preset or DEFAULT_PRESET)
  if mesh.size == 1 or not axes or (preset is None and all(mesh.shape[axis] == 1 for axis in axes)):
    return
  sizes = {}
  whole = {}
  leaves = jax.tree.leaves_with_path(params_shapes)
  for (path, leaf), sharding in zip(leaves, jax.tree.leaves(shardings), strict=True):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    sizes[name] = math.prod(leaf.shape)
    if sharding.is_fully_replicated:
      whole[name] = leaf.shape
  total, left = sum(sizes.values()), sum(sizes[name] for name in whole)
  if left <= allowed * total:
    return
  largest = sorted(whole, key=lambda name: (-sizes[name], name))
  rows = [f"{name}  {whole[name]}  {sizes[name]:,} ({sizes[name] / total:.1%})" for name in largest[:_SHOWN]]
  if len(largest) > _SHOWN:
    rest = largest[_SHOWN:]
    rows.append(f"and {len(rest)} more with {sum(sizes[name] for name in rest):,}")
  split = ", ".join(f"{axis}={mesh.shape[axis]}" for axis in sorted(axes))
  raise UserError(
    f"{left / total:.1%} of the parameters ({left:,} of {total:,}) are whole on every device",
    preset=f"{preset or DEFAULT_PRESET}: splits parameters over {split}; at most {allowed:.0%} may be left whole",
    mesh=describe_mesh(mesh),
    whole="\n".join(rows),
    try_=_remedy(mesh, axes),
  )


def _remedy(mesh: Mesh | AbstractMesh, axes: set[str]) -> str:
  if all(mesh.shape[axis] == 1 for axis in axes):
    axis = min(axes)  # fsdp before tensor: it splits any model
    return " ".join(f"--gin.MESH.{name}={-1 if name == axis else 1}" for name in mesh.shape)
  if "fsdp" not in axes or mesh.shape["fsdp"] == 1:
    return "--gin.MESH.data=1 --gin.MESH.fsdp=-1 --gin.MESH.preset=fsdp_tensor: fsdp splits nearly everything"
  return "logical axis names (nn.with_logical_partitioning) for these parameters in the model"
