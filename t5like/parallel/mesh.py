"""The device mesh, from named axis sizes."""

from __future__ import annotations

import dataclasses
import math

import jax
from jax.sharding import AxisType, Mesh

from t5like.errors import UserError

AXES = ("data", "fsdp", "tensor")


@dataclasses.dataclass(frozen=True)
class MeshAxes:
  """Devices along each axis; -1 fills one axis with what the others leave.

  data    copies of the model, each with its own rows of the batch
  fsdp    rows of the batch too, but parameters and optimizer state are split over it
  tensor  every layer's width is split over it: heads, MLP and vocabulary
  """

  data: int = -1
  fsdp: int = 1
  tensor: int = 1

  def sizes(self, devices: int) -> dict[str, int]:
    """Axis sizes for a number of devices, -1 filled."""
    given = {axis: getattr(self, axis) for axis in AXES}
    fills = [axis for axis, size in given.items() if size == -1]
    fixed = math.prod(size for size in given.values() if size != -1)
    described = " * ".join(f"{axis}={size}" for axis, size in given.items())
    if len(fills) > 1 or any(size < 1 and size != -1 for size in given.values()):
      raise UserError("a mesh axis is a positive size, and -1 on one axis at most", mesh=described)
    if fills and devices % fixed == 0:
      given[fills[0]] = devices // fixed
    if math.prod(given.values()) != devices:
      raise UserError(
        "the mesh does not cover the devices",
        mesh=f"{described} = {fixed}{' * ?' if fills else ''}, but there are {devices} devices",
        try_=_suggestion(self, devices),
      )
    return given


def _suggestion(axes: MeshAxes, devices: int) -> str:
  """The closest mesh that works: model axes cut to divisors, data filled."""
  tensor = math.gcd(max(axes.tensor, 1), devices)
  fsdp = math.gcd(max(axes.fsdp, 1), devices // tensor)
  return f"--gin.MESH.data=-1 --gin.MESH.fsdp={fsdp} --gin.MESH.tensor={tensor}"


def make_mesh(axes: MeshAxes, devices: list[jax.Device] | None = None) -> Mesh:
  devices = jax.devices() if devices is None else devices
  sizes = axes.sizes(len(devices))
  return jax.make_mesh(tuple(sizes.values()), AXES, devices=devices, axis_types=(AxisType.Auto,) * len(AXES))


def describe_mesh(mesh: Mesh) -> str:
  return " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())


def check_batch(batch_size: int, mesh: Mesh, option: str = "--gin.BATCH_SIZE") -> None:
  """Rows must divide evenly over the devices that share the batch; `option` is where the user sets them."""
  ways = mesh.shape["data"] * mesh.shape["fsdp"]
  if batch_size % ways:
    below, above = batch_size // ways * ways, -(-batch_size // ways) * ways
    raise UserError(
      f"a batch of {batch_size} does not divide over {ways} devices",
      mesh=describe_mesh(mesh),
      try_=" or ".join(f"{option}={size}" for size in (below, above) if size > 0),
    )
