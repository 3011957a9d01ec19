"""Meshes from named axes, and the errors if they do not fit."""

import types

import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.errors import UserError
from t5like.parallel import mesh as mesh_module


def test_minus_one_takes_the_remaining_devices():
  assert parallel.MeshAxes().sizes(8) == {"data": 8, "fsdp": 1, "tensor": 1}
  assert parallel.MeshAxes(data=2, fsdp=-1, tensor=2).sizes(16) == {"data": 2, "fsdp": 4, "tensor": 2}


def test_slices_lengthen_the_data_axis():
  assert parallel.MeshAxes(data=-1, fsdp=4, slices=2).sizes(32) == {"data": 8, "fsdp": 4, "tensor": 1}
  assert parallel.MeshAxes(data=1, fsdp=-1, slices=2).sizes(32) == {"data": 2, "fsdp": 16, "tensor": 1}


@pytest.mark.parametrize(
  ("axes", "devices", "equation", "suggestion"),
  [
    (dict(data=3), 8, "data=3 * fsdp=1 * tensor=1 = 3", "--gin.MESH.data=-1 --gin.MESH.fsdp=1 --gin.MESH.tensor=1"),
    (dict(tensor=3), 8, "data=-1 * fsdp=1 * tensor=3 = 3 * ?", "--gin.MESH.tensor=1"),
    (
      dict(data=-1, fsdp=4, tensor=6), 16, "data=-1 * fsdp=4 * tensor=6 = 24 * ?",
      "--gin.MESH.fsdp=4 --gin.MESH.tensor=2",
    ),
    (
      dict(data=2, fsdp=4, tensor=2, slices=3), 32, "slices=3 * data=2 * fsdp=4 * tensor=2 = 48",
      "--gin.MESH.slices=1 --gin.MESH.data=-1 --gin.MESH.fsdp=4 --gin.MESH.tensor=2",
    ),
    (dict(data=-1, slices=4), 6, "slices=4 * data=-1 * fsdp=1 * tensor=1 = 4 * ?", "--gin.MESH.slices=2"),
  ],
)  # fmt: skip
def test_a_mesh_that_does_not_fit_is_reported_with_some_that_do(axes, devices, equation, suggestion):
  with pytest.raises(UserError, match="does not cover") as error:
    parallel.MeshAxes(**axes).sizes(devices)
  assert f"{equation}, but there are {devices} devices" in str(error.value)
  suggestions = error.value.lines["try"].split("\n")
  assert suggestion in suggestions[0]
  for line in suggestions:
    sizes = dict(part.removeprefix("--gin.MESH.").split("=") for part in line.split())
    filled = parallel.MeshAxes(**{k: int(v) for k, v in sizes.items()}).sizes(devices)
    assert np.prod(list(filled.values())) == devices


@pytest.mark.parametrize("axes", [dict(data=-1, fsdp=-1), dict(data=0), dict(tensor=-2), dict(slices=0)])
def test_invalid_sizes_are_rejected(axes):
  with pytest.raises(UserError, match="positive sizes"):
    parallel.MeshAxes(**axes).sizes(8)


def test_the_batch_size_must_be_divisible_by_data_and_fsdp():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2))
  parallel.check_batch(12, mesh)
  with pytest.raises(UserError, match="invalid batch size: 6 .must be divisible by the 4 data shards"):
    parallel.check_batch(6, mesh)


def fake_devices(platform: str, slices: int, per_slice: int) -> list:
  """Returns devices of several slices, in an order that mixes the slices."""
  return [
    types.SimpleNamespace(
      id=slice_index * per_slice + i, slice_index=slice_index, process_index=slice_index, platform=platform,
      device_kind="fake", core_on_chip=0, coords=(i, 0, 0),
    )
    for i in range(per_slice) for slice_index in range(slices)
  ]  # fmt: skip


def test_each_slice_is_a_contiguous_part_of_the_data_axis():
  sizes = parallel.MeshAxes(data=2, fsdp=2, tensor=2, slices=2).sizes(16)
  grid = mesh_module.arrange_slices(sizes, 2, fake_devices("cpu", slices=2, per_slice=8))
  assert grid.shape == (4, 2, 2)
  slices = np.vectorize(lambda device: device.slice_index)(grid)
  assert (slices[:2] == 0).all() and (slices[2:] == 1).all()
  assert sorted(device.id for device in grid.flat) == list(range(16))


def test_without_hardware_slices_devices_are_in_order_with_slices_outermost():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=1, fsdp=4, slices=2))
  assert dict(mesh.shape) == {"data": 2, "fsdp": 4, "tensor": 1}
  assert [device.id for device in mesh.devices[0].flat] == [device.id for device in jax.devices()[:4]]


def test_a_wrong_number_of_tpu_slices_is_reported():
  with pytest.raises(UserError, match=r"the mesh has 1 slice\(s\), but the devices form 2") as error:
    parallel.make_mesh(parallel.MeshAxes(), fake_devices("tpu", slices=2, per_slice=4))
  assert " MESH.slices=2" in str(error.value)


def test_an_abstract_mesh_has_the_same_sizes():
  axes = parallel.MeshAxes(data=-1, fsdp=16, tensor=4, slices=2)
  mesh = parallel.abstract_mesh(axes, 512)
  assert dict(mesh.shape) == axes.sizes(512) == {"data": 8, "fsdp": 16, "tensor": 4}
  assert parallel.describe_mesh(mesh) == "data=8 fsdp=16 tensor=4"
