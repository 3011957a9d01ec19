"""Device meshes, built from named axis sizes."""

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
from t5like.parallel.connections import connect_mesh
from t5like.parallel.presets import PRESETS, mesh_axes_used

AXES = ("data", "fsdp", "tensor")
EXPERT = "expert"  # a fourth axis, before `tensor`, of meshes on which it is longer than 1


class MeshError(UserError):
  """A mesh that does not fit the devices or the model; `suggestions` are sizes by axis name that do.

  The message lists them as options of `t5like train`; `with_suggestions` formats them for another command.
  """

  def __init__(self, what: str, suggestions: Sequence[Mapping[str, int | str]], **lines: object):
    self.suggestions = list(suggestions)
    tries = (" ".join(f"--gin.MESH.{axis}={size}" for axis, size in axes.items()) for axes in self.suggestions)
    super().__init__(what, **lines, try_="\n".join(dict.fromkeys(tries)))

  def with_suggestions(self, to_option: Callable[[Mapping[str, int | str]], str]) -> UserError:
    """Returns the same error with suggestions formatted by `to_option`."""
    tries = "\n".join(dict.fromkeys(map(to_option, self.suggestions)))
    return UserError(self.what, **{name: text for name, text in self.lines.items() if name != "try"}, try_=tries)


@dataclasses.dataclass(frozen=True)
class MeshAxes:
  """The number of devices along each axis; -1 on one axis: all remaining devices.

  data    data parallelism: the batch is sharded, the model is replicated
  fsdp    fully sharded data parallelism: the batch, parameters and optimizer state are sharded
  tensor  tensor parallelism: heads, MLP and vocabulary are sharded
  expert  expert parallelism: the experts of a layer are sharded, and the batch
  slices  groups of devices with a fast network within and a slow one between them (TPU multislice). Each group has
          data * fsdp * expert * tensor devices; only gradients cross the slow network, as if `data` were longer
  preset  the sharding rules: a column of presets.TABLE. None: uses every axis longer than 1
  """

  data: int = -1
  fsdp: int = 1
  tensor: int = 1
  slices: int = 1
  preset: str | None = None
  expert: int = 1

  def __post_init__(self):
    if self.preset is not None and self.preset not in PRESETS:
      raise UserError(
        f"unknown sharding preset {self.preset!r}",
        presets=", ".join(PRESETS),
        nearest=nearest(str(self.preset), PRESETS),
        try_="--gin.MESH.preset=fsdp_tensor",
      )

  @classmethod
  def of(cls, given: MeshAxes | Mapping[str, int | str] | None) -> MeshAxes | None:
    """Returns the axes of a mapping such as {"tensor": 4}; raises UserError for anything else than axes."""
    if given is None or isinstance(given, MeshAxes):
      return given
    names = [field.name for field in dataclasses.fields(cls)]
    wrong = [given]
    if isinstance(given, Mapping):
      wrong = [
        name for name, size in given.items() if name not in names or (name != "preset" and type(size) is not int)
      ]
    if wrong:
      close = nearest(wrong[0], names)
      raise UserError(f"invalid mesh: {given!r}", expected='sizes such as {"tensor": 4}', nearest=close)
    return cls(**given)

  def sizes(self, devices: int) -> dict[str, int]:
    """Resolves -1 for a number of devices and returns the size of each axis; `data` includes the slices."""
    axes = AXES if self.expert == 1 else (*AXES[:-1], EXPERT, AXES[-1])
    given = {axis: getattr(self, axis) for axis in axes}
    fills = [axis for axis, size in given.items() if size == -1]
    if len(fills) > 1 or any(size < 1 and size != -1 for size in given.values()) or self.slices < 1:
      raise UserError(
        "invalid mesh",
        mesh=self._equation(given),
        expected=f"positive sizes, and -1 for at most one of {', '.join(axes[:-1])} and {axes[-1]}",
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
  """Yields valid meshes, closest first: one axis is -1, the others are reduced to divisors."""
  slices = math.gcd(axes.slices, devices)
  devices //= slices
  outer = {"slices": slices} if axes.slices != 1 else {}
  tensor = math.gcd(max(axes.tensor, 1), devices)
  fsdp = math.gcd(max(axes.fsdp, 1), devices // tensor)
  yield {**outer, "data": -1, "fsdp": fsdp, "tensor": tensor}
  data = math.gcd(max(axes.data, 1), devices // tensor)
  yield {**outer, "data": data, "fsdp": -1, "tensor": tensor}


def make_mesh(axes: MeshAxes, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """Builds a mesh over `devices`, by default all. Raises MeshError if the axes do not fit them.

  With several processes, all must call it: those of CPUs connect.
  """
  devices = jax.devices() if devices is None else devices
  sizes = axes.sizes(len(devices))
  _check_unused_axes(axes, sizes)
  names, kinds = tuple(sizes), (AxisType.Auto,) * len(sizes)
  if _has_slices(axes, devices):
    mesh = Mesh(arrange_slices(sizes, axes.slices, devices), names, axis_types=kinds)
  else:
    mesh = jax.make_mesh(tuple(sizes.values()), names, devices=devices, axis_types=kinds)
  connect_mesh(mesh)
  return mesh


def abstract_mesh(axes: MeshAxes, devices: int) -> AbstractMesh:
  """Builds a mesh without devices, to plan, trace and lower for other machines."""
  sizes = axes.sizes(devices)
  _check_unused_axes(axes, sizes)
  return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def arrange_slices(sizes: dict[str, int], slices: int, devices: Sequence[Any]) -> np.ndarray:
  """Arranges devices as [data, fsdp, tensor], with slices along `data`: other axes use the fast network."""
  inside = (sizes["data"] // slices, *list(sizes.values())[1:])
  return mesh_utils.create_hybrid_device_mesh(inside, (slices, *(1,) * (len(sizes) - 1)), devices)


def _has_slices(axes: MeshAxes, devices: Sequence[Any]) -> bool:
  """Whether the hardware consists of the mesh's number of slices, if more than one.

  CPUs report none, and GPUs may report each machine as a slice: their meshes are in device order, which also has
  slices outermost. TPUs would be slow or fail with another number of slices, so this raises MeshError.
  """
  found = len({getattr(device, "slice_index", 0) for device in devices})
  if found != axes.slices and devices[0].platform == "tpu":
    raise MeshError(f"the mesh has {axes.slices} slice(s), but the devices form {found}", [{"slices": found}])
  return axes.slices > 1 and found == axes.slices


def _check_unused_axes(axes: MeshAxes, sizes: dict[str, int]) -> None:
  """Raises UserError if the preset does not use an axis, whose devices would all do the same work."""
  used = {*(mesh_axes_used(axes.preset) if axes.preset else AXES), EXPERT}
  unused = [axis for axis, size in sizes.items() if size > 1 and axis not in used]
  if unused:
    usable = [name for name in PRESETS if unused[0] in mesh_axes_used(name)]
    raise UserError(
      f"preset {axes.preset!r} does not use the {unused[0]!r} axis of size {sizes[unused[0]]}",
      mesh=" ".join(f"{axis}={size}" for axis, size in sizes.items()),
      try_=f"--gin.MESH.{unused[0]}=1, or --gin.MESH.preset=X with X one of {', '.join(usable)}",
    )


def describe_mesh(mesh: Mesh | AbstractMesh) -> str:
  return " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())


def row_shards(sizes: Mapping[str, int]) -> int:
  """Returns the number of shards of a batch, given the sizes of the axes of a mesh."""
  return sizes["data"] * sizes["fsdp"] * sizes.get(EXPERT, 1)


def check_batch(batch_size: int, mesh: Mesh, option: str = "--gin.BATCH_SIZE") -> None:
  """Raises UserError unless the data shards divide the batch; `option` is where the user sets its size."""
  shards = row_shards(mesh.shape)
  if batch_size % shards:
    below, above = batch_size // shards * shards, -(-batch_size // shards) * shards
    raise UserError(
      f"invalid batch size: {batch_size} (must be divisible by the {shards} data shards)",
      mesh=describe_mesh(mesh),
      try_=" or ".join(f"{option}={size}" for size in (below, above) if size > 0),
    )
