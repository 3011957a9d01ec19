"""Meshes from named axes, and what is said when they do not fit."""

import pytest

from t5like import parallel
from t5like.errors import UserError


def test_minus_one_fills():
  assert parallel.MeshAxes().sizes(8) == {"data": 8, "fsdp": 1, "tensor": 1}
  assert parallel.MeshAxes(data=2, fsdp=-1, tensor=2).sizes(16) == {"data": 2, "fsdp": 4, "tensor": 2}


@pytest.mark.parametrize(
  ("axes", "devices", "suggestion"),
  [
    (dict(data=3), 8, "--gin.MESH.data=-1 --gin.MESH.fsdp=1 --gin.MESH.tensor=1"),
    (dict(tensor=3), 8, "--gin.MESH.tensor=1"),
    (dict(data=-1, fsdp=4, tensor=6), 16, "--gin.MESH.fsdp=4 --gin.MESH.tensor=2"),
  ],
)
def test_a_mesh_that_does_not_fit_comes_with_one_that_does(axes, devices, suggestion):
  with pytest.raises(UserError, match="does not cover") as error:
    parallel.MeshAxes(**axes).sizes(devices)
  assert f"{devices} devices" in str(error.value) and suggestion in str(error.value)
  sizes = dict(part.removeprefix("--gin.MESH.").split("=") for part in str(error.value).split() if "MESH" in part)
  assert parallel.MeshAxes(**{k: int(v) for k, v in sizes.items()}).sizes(devices)


@pytest.mark.parametrize("axes", [dict(data=-1, fsdp=-1), dict(data=0), dict(tensor=-2)])
def test_impossible_sizes_are_refused(axes):
  with pytest.raises(UserError, match="positive size"):
    parallel.MeshAxes(**axes).sizes(8)


def test_rows_must_divide_over_data_and_fsdp():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2))
  parallel.check_batch(12, mesh)
  with pytest.raises(UserError, match="batch of 6 does not divide over 4"):
    parallel.check_batch(6, mesh)


def test_every_logical_axis_has_one_rule():
  names = [name for name, _ in parallel.LOGICAL_AXIS_RULES]
  assert sorted(names) == sorted({"batch", "length", "embed", "mlp", "heads", "kv", "vocab", "layers"})
