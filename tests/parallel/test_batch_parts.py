"""Which process holds which rows, and how an optimizer state is split, on meshes worked out by hand."""

import types

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from t5like import parallel
from t5like.errors import UserError
from t5like.parallel.coverage import _remedy
from t5like.parallel.presets import mesh_axes_of, parameter_axes_of


class FakeMesh:
  """Devices in order along data, fsdp and tensor, of the given processes."""

  def __init__(self, data, fsdp, tensor, processes):
    self.shape = {"data": data, "fsdp": fsdp, "tensor": tensor}
    devices = [types.SimpleNamespace(process_index=process) for process in processes]
    self.devices = np.array(devices, object).reshape(data, fsdp, tensor)


@pytest.mark.parametrize(
  ("shape", "processes", "held"),
  [
    ((2, 2, 2), [0] * 4 + [1] * 4, [(0, 1), (2, 3)]),  # a process for each half of `data`
    ((4, 1, 2), [0, 1] * 4, [(0, 1, 2, 3)] * 2),  # `tensor` over both: the same rows in each
    ((1, 2, 2), [0, 0, 1, 1], [(0,), (1,)]),
    ((3, 1, 2), [0, 0, 0, 1, 1, 1], [(0, 1), (1, 2)]),  # both have devices of the middle part
  ],
)
def test_the_parts_of_a_process(shape, processes, held):
  mesh = FakeMesh(*shape, processes)
  for process, parts in enumerate(held):
    assert parallel.batch_parts(mesh, process) == parallel.BatchParts(parts, shape[0] * shape[1])


def test_streams_are_dealt_out_to_groups_of_processes(monkeypatch):
  def group(process, *mesh):
    monkeypatch.setattr(jax, "process_index", lambda: process)
    return parallel.part_group(FakeMesh(*mesh))

  assert [group(process, 2, 1, 2, [0, 1, 2, 3]) for process in range(4)] == [(0, 2), (0, 2), (1, 2), (1, 2)]
  assert [group(process, 2, 2, 1, [1, 1, 0, 0]) for process in range(2)] == [(1, 2), (0, 2)]
  with pytest.raises(UserError, match="overlapping parts"):
    group(0, 3, 1, 2, [0, 0, 0, 1, 1, 1])


def test_rows_go_to_their_devices():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2))
  rows = np.arange(24).reshape(8, 3)
  array = parallel.to_global_arrays({"rows": rows}, mesh)["rows"]
  np.testing.assert_array_equal(array, rows)
  for shard in array.addressable_shards:
    part = int(np.argwhere(mesh.devices.reshape(4, 2) == shard.device)[0, 0])
    np.testing.assert_array_equal(shard.data, rows[2 * part : 2 * part + 2])


def test_moments_are_split_as_their_parameters_without_the_axis_they_lack():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=1, fsdp=4, tensor=2))
  shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, np.float32)  # noqa: E731
  params = {"mlp": {"kernel": shape(8, 16, 6)}, "kernel": shape(8, 4)}
  shardings = {
    "mlp": {"kernel": jax.NamedSharding(mesh, P("fsdp", "tensor"))},
    "kernel": jax.NamedSharding(mesh, P(None, "fsdp")),
  }
  state = {
    "count": shape(),
    "full": params,
    "first": {"mlp": {"kernel": shape(16, 6)}},
    "second": {"mlp": {"kernel": shape(8, 6)}},
    "third": {"mlp": {"kernel": shape(8, 16)}},
    "other": {"mlp": {"kernel": shape(5, 5)}, "kernel": shape(8)},
  }
  found = jax.tree.map(lambda s: s.spec, parallel.shardings_like_parameters(state, params, shardings, mesh))
  assert found == {
    "count": P(),
    "full": {"mlp": {"kernel": P("fsdp", "tensor", None)}, "kernel": P(None, "fsdp")},
    "first": {"mlp": {"kernel": P("tensor", None)}},
    "second": {"mlp": {"kernel": P("fsdp", None)}},
    "third": {"mlp": {"kernel": P("fsdp", "tensor")}},
    "other": {"mlp": {"kernel": P()}, "kernel": P(None)},
  }


def test_the_axes_of_presets():
  rows = {"data", "fsdp"}
  assert {name: mesh_axes_of(name) for name in parallel.PRESETS} == {
    "data_parallel": rows, "fsdp": rows, "tensor": rows | {"tensor"}, "fsdp_tensor": rows | {"tensor"},
    "sequence": rows | {"tensor"},
  }  # fmt: skip
  assert {name: parameter_axes_of(name) for name in parallel.PRESETS} == {
    "data_parallel": set(), "fsdp": {"fsdp"}, "tensor": {"tensor"}, "fsdp_tensor": {"fsdp", "tensor"},
    "sequence": {"fsdp", "tensor"},
  }  # fmt: skip


def test_what_to_try_where_parameters_are_whole():
  remedy = lambda axes, **sizes: _remedy(parallel.abstract_mesh(parallel.MeshAxes(**sizes), 8), axes)  # noqa: E731
  assert remedy({"fsdp", "tensor"}) == "--gin.MESH.data=1 --gin.MESH.fsdp=-1 --gin.MESH.tensor=1"
  assert "preset=fsdp_tensor" in remedy({"tensor"}, tensor=8) and "preset=fsdp_tensor" in remedy(
    {"fsdp", "tensor"}, tensor=8
  )
  assert "logical axis names" in remedy({"fsdp"}, fsdp=8)


def test_a_batch_that_does_not_divide_comes_with_some_that_do():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2))
  for rows, sizes in ((6, "--rows=4 or --rows=8"), (3, "--rows=4")):
    with pytest.raises(UserError) as error:
      parallel.check_batch(rows, mesh, "--rows")
    assert error.value.lines["try"] == sizes
