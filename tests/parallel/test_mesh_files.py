"""The files of gin/meshes: one per preset, each of which fits eight devices."""

import pytest

from t5like import configuration, parallel
from t5like.configuration.search_path import shipped_folder

pytestmark = pytest.mark.usefixtures("clean_gin")


def mesh_axes(name, **overrides):
  files = ["models/t5/base.gin", "objectives/span_corruption.gin", "runs/pretrain.gin", f"meshes/{name}.gin"]
  configuration.load(files, [("MODEL_DIR", "unused"), *overrides.items()])
  return configuration.build("train").mesh


@pytest.mark.parametrize(
  ("name", "shape"),
  [
    ("data_parallel", (8, 1, 1)),
    ("fsdp", (1, 8, 1)),
    ("tensor", (4, 1, 2)),
    ("fsdp_tensor", (1, 4, 2)),
    ("sequence", (1, 4, 2)),
  ],
)
def test_a_file_sets_its_preset_and_uses_all_devices(name, shape):
  axes = mesh_axes(name)
  assert axes.preset == name
  assert tuple(parallel.make_mesh(axes).shape.values()) == shape


def test_sizes_and_slices_can_be_changed_on_the_command_line():
  axes = mesh_axes("fsdp", **{"MESH.slices": "2"})
  assert dict(parallel.make_mesh(axes).shape) == {"data": 2, "fsdp": 4, "tensor": 1}


def test_every_preset_has_a_file():
  assert {path.stem for path in (shipped_folder() / "meshes").glob("*.gin")} == set(parallel.PRESETS)
