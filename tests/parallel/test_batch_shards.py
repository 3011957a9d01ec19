"""The rows that each process holds, and the sharding of an optimizer state, on meshes computed by hand."""

import types

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from t5like import parallel
from t5like.errors import UserError
from t5like.parallel.coverage import _suggestion
from t5like.parallel.presets import mesh_axes_used, parameter_mesh_axes


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
    ((3, 1, 2), [0, 0, 0, 1, 1, 1], [(0, 1), (1, 2)]),  # both have devices of the middle shard
  ],
)
def test_the_shards_of_a_process(shape, processes, held):
  mesh = FakeMesh(*shape, processes)
  for process, shards in enumerate(held):
    assert parallel.batch_shards(mesh, process) == parallel.BatchShards(shards, shape[0] * shape[1])


def test_streams_are_distributed_over_groups_of_processes(monkeypatch):
  def group(process, *mesh):
    monkeypatch.setattr(jax, "process_index", lambda: process)
    return parallel.shard_group(FakeMesh(*mesh))

  assert [group(process, 2, 1, 2, [0, 1, 2, 3]) for process in range(4)] == [(0, 2), (0, 2), (1, 2), (1, 2)]
  assert [group(process, 2, 2, 1, [1, 1, 0, 0]) for process in range(2)] == [(1, 2), (0, 2)]

  def is_first(process, *mesh):
    monkeypatch.setattr(jax, "process_index", lambda: process)
    return parallel.is_first_of_group(FakeMesh(*mesh))

  assert [is_first(process, 2, 1, 2, [0, 1, 2, 3]) for process in range(4)] == [True, False, True, False]
  assert [is_first(process, 2, 2, 1, [1, 1, 0, 0]) for process in range(2)] == [True, True]
  with pytest.raises(UserError, match="shards partly overlap"):
    group(0, 3, 1, 2, [0, 0, 0, 1, 1, 1])


def test_rows_are_placed_on_their_devices():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2))
  rows = np.arange(24).reshape(8, 3)
  array = parallel.to_global_arrays({"rows": rows}, mesh)["rows"]
  np.testing.assert_array_equal(array, rows)
  for shard in array.addressable_shards:
    part = int(np.argwhere(mesh.devices.reshape(4, 2) == shard.device)[0, 0])
    np.testing.assert_array_equal(shard.data, rows[2 * part : 2 * part + 2])


def test_moments_are_sharded_like_their_parameters_without_the_axis_they_lack():
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


def test_the_mesh_axes_of_presets():
  rows = {"data", "fsdp"}
  assert {name: mesh_axes_used(name) for name in parallel.PRESETS} == {
    "data_parallel": rows, "fsdp": rows, "tensor": rows | {"tensor"}, "fsdp_tensor": rows | {"tensor"},
    "sequence": rows | {"tensor"},
  }  # fmt: skip
  assert {name: parameter_mesh_axes(name) for name in parallel.PRESETS} == {
    "data_parallel": set(), "fsdp": {"fsdp"}, "tensor": {"tensor"}, "fsdp_tensor": {"fsdp", "tensor"},
    "sequence": {"fsdp", "tensor"},
  }  # fmt: skip


def test_suggestions_for_replicated_parameters():
  suggestion = lambda axes, **sizes: _suggestion(parallel.abstract_mesh(parallel.MeshAxes(**sizes), 8), axes)  # noqa: E731
  assert suggestion({"fsdp", "tensor"}) == "--gin.MESH.data=1 --gin.MESH.fsdp=-1 --gin.MESH.tensor=1"
  assert "preset=fsdp_tensor" in suggestion({"tensor"}, tensor=8) and "preset=fsdp_tensor" in suggestion(
    {"fsdp", "tensor"}, tensor=8
  )
  assert "logical axis names" in suggestion({"fsdp"}, fsdp=8)


def test_an_invalid_batch_size_is_reported_with_the_nearest_valid_ones():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2))
  for rows, sizes in ((6, "--rows=4 or --rows=8"), (3, "--rows=4")):
    with pytest.raises(UserError) as error:
      parallel.check_batch(rows, mesh, "--rows")
    assert error.value.lines["try"] == sizes
