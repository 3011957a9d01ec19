"""The device mesh, from named axis sizes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from t5like.errors import UserError, nearest
from t5like.parallel.presets import PRESETS, mesh_axes_of

AXES = ("data", "fsdp", "tensor")


class MeshError(UserError):
  """A mesh that does not fit the devices or the model; `suggestions` are axes that do, by name.

  The message shows them as options of `t5like train`; `shown` shows them for another command.
  """

  def __init__(self, what: str, suggestions: Sequence[Mapping[str, int | str]], **lines: object):
    self.suggestions = list(suggestions)
    tries = (" ".join(f"--gin.MESH.{axis}={size}" for axis, size in axes.items()) for axes in self.suggestions)
    super().__init__(what, **lines, try_="\n".join(dict.fromkeys(tries)))

  def shown(self, show: Callable[[Mapping[str, int | str]], str]) -> UserError:
    tries = "\n".join(dict.fromkeys(map(show, self.suggestions)))
    return UserError(self.what, **{name: text for name, text in self.lines.items() if name != "try"}, try_=tries)


@dataclasses.dataclass(frozen=True)
class MeshAxes:
  """Devices along each axis; -1 fills one axis with what the others leave.

  data    copies of the model, each with its own rows of the batch
  fsdp    rows of the batch too, but parameters and optimizer state are split over it
  tensor  every layer's width is split over it: heads, MLP and vocabulary
  slices  groups of devices with a fast network inside and a slow one between them (TPU multi-slice). Each group
          has data * fsdp * tensor devices; only gradients cross the slow network, as if `data` were longer
  preset  which axes are used for what: a column of presets.TABLE. None: every axis that is longer than 1
  """

  data: int = -1
  fsdp: int = 1
  tensor: int = 1
  slices: int = 1
  preset: str | None = None

  def __post_init__(self):
    if self.preset is not None and self.preset not in PRESETS:
      raise UserError(
        f"no sharding preset is called {self.preset!r}",
        presets=", ".join(PRESETS),
        nearest=nearest(str(self.preset), PRESETS),
        try_="--gin.MESH.preset=fsdp_tensor",
      )

  def sizes(self, devices: int) -> dict[str, int]:
    """Axis sizes for a number of devices, -1 filled; `data` counts the slices in."""
    given = {axis: getattr(self, axis) for axis in AXES}
    fills = [axis for axis, size in given.items() if size == -1]
    if len(fills) > 1 or any(size < 1 and size != -1 for size in given.values()) or self.slices < 1:
      raise UserError(
        "a mesh axis is a positive size, and -1 on one of data, fsdp and tensor at most", mesh=self._equation(given)
      )
    fixed = self.slices * math.prod(size for size in given.values() if size != -1)
    if fills and devices % fixed == 0:
      given[fills[0]] = devices // fixed
    if self.slices * math.prod(given.values()) != devices:
      raise MeshError(
        "the mesh does not cover the devices",
        list(_suggestions(self, devices)),
        mesh=f"{self._equation(given)} = {fixed}{' * ?' if fills else ''}, but there are {devices} devices",
      )
    return given | {"data": given["data"] * self.slices}

  def _equation(self, given: dict[str, int]) -> str:
    sizes = ({"slices": self.slices} if self.slices != 1 else {}) | given
    return " * ".join(f"{axis}={size}" for axis, size in sizes.items())


def _suggestions(axes: MeshAxes, devices: int) -> Iterator[dict[str, int]]:
  """Meshes that work, closest first: the other axes cut to divisors, one axis filled."""
  slices = math.gcd(axes.slices, devices)
  devices //= slices
  outer = {"slices": slices} if axes.slices != 1 else {}
  tensor = math.gcd(max(axes.tensor, 1), devices)
  fsdp = math.gcd(max(axes.fsdp, 1), devices // tensor)
  yield {**outer, "data": -1, "fsdp": fsdp, "tensor": tensor}
  data = math.gcd(max(axes.data, 1), devices // tensor)
  yield {**outer, "data": data, "fsdp": -1, "tensor": tensor}


def make_mesh(axes: MeshAxes, devices: Sequence[jax.Device] | None = None) -> Mesh:
  devices = jax.devices() if devices is None else devices
  sizes = axes.sizes(len(devices))
  _check_axes_are_used(axes, sizes)
  kinds = (AxisType.Auto,) * len(AXES)
  if _has_slices(axes, devices):
    return Mesh(arrange_slices(sizes, axes.slices, devices), AXES, axis_types=kinds)
  return jax.make_mesh(tuple(sizes.values()), AXES, devices=devices, axis_types=kinds)


def abstract_mesh(axes: MeshAxes, devices: int) -> AbstractMesh:
  """A mesh of devices that are elsewhere: enough to plan, trace and lower for them."""
  sizes = axes.sizes(devices)
  _check_axes_are_used(axes, sizes)
  return AbstractMesh(tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def arrange_slices(sizes: dict[str, int], slices: int, devices: Sequence[Any]) -> np.ndarray:
  """Devices as [data, fsdp, tensor], each slice one stretch of `data`: fsdp and tensor stay on the fast network."""
  inside = (sizes["data"] // slices, sizes["fsdp"], sizes["tensor"])
  return mesh_utils.create_hybrid_device_mesh(inside, (slices, 1, 1), devices)


def _has_slices(axes: MeshAxes, devices: Sequence[Any]) -> bool:
  """Whether the hardware is in slices, and in as many as the mesh says.

  CPUs have none, and GPUs may report each machine as one: there a mesh is laid out in device order, which has
  the slices outermost too. TPUs would be slow or fail in another number than their own, so that is refused.
  """
  found = len({getattr(device, "slice_index", 0) for device in devices})
  if found != axes.slices and devices[0].platform == "tpu":
    raise MeshError(f"the devices are in {found} slice(s), the mesh says {axes.slices}", [{"slices": found}])
  return axes.slices > 1 and found == axes.slices


def _check_axes_are_used(axes: MeshAxes, sizes: dict[str, int]) -> None:
  """An axis that a preset has no use for would only repeat the same work on its devices."""
  used = mesh_axes_of(axes.preset) if axes.preset else set(AXES)
  idle = [axis for axis, size in sizes.items() if size > 1 and axis not in used]
  if idle:
    usable = [name for name in PRESETS if idle[0] in mesh_axes_of(name)]
    raise UserError(
      f"the preset {axes.preset!r} does nothing with the {idle[0]!r} axis of size {sizes[idle[0]]}",
      mesh=" ".join(f"{axis}={size}" for axis, size in sizes.items()),
      try_=f"--gin.MESH.{idle[0]}=1, or --gin.MESH.preset=X with X one of {', '.join(usable)}",
    )


def describe_mesh(mesh: Mesh | AbstractMesh) -> str:
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
