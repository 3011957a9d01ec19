"""The search over meshes, batch sizes and machines: which are candidates."""

import dataclasses

import jax
import numpy as np
import pytest

from t5like import parallel, planning
from t5like.models import GPT
from t5like.models.config import TransformerConfig
from t5like.planning.forecast import step_parts
from t5like.planning.operations import DeviceShare, layer_operations
from t5like.planning.plan_text import days, render_plan
from t5like.planning.search import _machines, least_batch_size, meshes, with_batch_size
from t5like.planning.topology import parse_topology

SIZES = dict(vocab_size=128, embed_dim=32, mlp_dim=64, num_heads=8, head_dim=8, num_decoder_layers=2)


def work(rows=12, steps=10, **changes):
  model = GPT(TransformerConfig(**{**SIZES, **changes}))
  tokens = jax.ShapeDtypeStruct((rows, 16), np.int32)
  return planning.Work(model, planning.State({}, {}), {"decoder_input_tokens": tokens}, steps=steps)


def tensors(topology, **changes):
  return {axes.tensor for axes in meshes(work(**changes), parse_topology(topology))}


@pytest.mark.parametrize(("changes", "expected"), [
  ({}, {1, 2, 4, 8}), ({"num_kv_heads": 2}, {1, 2}), ({"mlp_dim": 36}, {1, 2, 4}), ({"vocab_size": 130}, {1, 2}),
])  # fmt: skip
def test_a_tensor_axis_divides_all_that_it_splits(changes, expected):
  assert tensors("h100x8", **changes) == expected


def test_a_tensor_axis_stays_within_a_machine_and_eight_devices():
  assert tensors("2xh100x4") == {1, 2, 4}
  assert tensors("v5e-64", num_heads=16) == {1, 2, 4, 8}


def test_meshes_use_all_devices_and_split_the_width():
  found = list(meshes(work(embed_dim=12), parse_topology("h100x8")))
  assert all(axes.data * axes.fsdp * axes.tensor == 8 for axes in found)
  assert {axes.fsdp for axes in found} == {1, 2, 4}
  assert {axes.preset for axes in found if axes.data == 8} == {"data_parallel"}
  assert least_batch_size(work(), parse_topology("h100x8")) == 1


def test_another_batch_size_sees_all_rows():
  resized = with_batch_size(work(rows=12, steps=10), 32)
  assert (resized.rows, resized.steps) == (32, 4)  # 120 rows are three batches and three quarters


def test_larger_machines_of_the_same_chip():
  names = [each.name for each in _machines(parse_topology("v5e-64"))]
  assert names == ["v5e-64", "v5e-128", "v5e-256", "2xv5e-256", "4xv5e-256", "8xv5e-256", "16xv5e-256"]
  assert [each.devices for each in _machines(parse_topology("h100x4"))] == [4, 8, 16, 32, 64, 128, 256]


def test_eight_percent_of_a_device_are_kept_free():
  found = planning.forecast(work(), parse_topology("h100"), parallel.MeshAxes(), with_memory=False)
  capacity = parse_topology("h100").chip.spec.memory
  for share, fits in ((0.91, True), (0.93, False)):
    used = planning.MemoryEstimate(share * capacity, 0, 0, 0, 0, 0, "at the loss")
    assert dataclasses.replace(found, memory=used).fits == fits


def test_microbatches_accumulate_gradients():
  def optimizer(microbatches):
    given = dataclasses.replace(work(rows=12, steps=1), microbatches=microbatches)
    params = jax.eval_shape(given.model.init, jax.random.key(0), given.batch)["params"]
    given = dataclasses.replace(given, state=planning.State(params, {}))
    operations, _ = step_parts(given, parse_topology("h100"), parallel.MeshAxes())
    return sum(o.count * o.bytes for o in operations if o.part == "optimizer")

  size = optimizer(1) / 8  # gradients and parameters are read and written eight times, without an optimizer's state
  assert optimizer(4) == size * (8 + 4 * 3)


def test_a_plan_counts_the_tokens_of_all_steps():
  found = planning.forecast(work(rows=12, steps=10), parse_topology("h100"), parallel.MeshAxes(), with_memory=False)
  found = dataclasses.replace(found, memory=planning.MemoryEstimate(1, 1, 1, 1, 1, 1, "at the loss"))
  text = render_plan([found], planning.price_of(1.0, found.topology.chip), [])
  assert f"10 steps, {10 * 12 * 16:,} tokens" in text


def test_times_have_the_unit_of_which_there_are_two():
  assert [days(hours * 3600) for hours in (0.02, 0.04, 1.9, 2, 47, 48)] == [
    "72.0 seconds", "2.4 minutes", "114.0 minutes", "2.0 hours", "47.0 hours", "2.0 days",
  ]  # fmt: skip


def test_a_window_bounds_what_a_fused_kernel_reads():
  def flops(**changes):
    config = TransformerConfig(
      **{**SIZES, "head_dim": 64, "compute_dtype": "bfloat16", "positions": "rotary", **changes}
    )
    operations = list(layer_operations(GPT(config), DeviceShare(2, 0, 4096, platform="gpu")))
    return sum(o.count * o.flops for o in operations if o.kind == "attention")

  causal = flops()
  assert flops(attention_window=4096) == causal > 0  # half of the pairs are masked anyway
  assert flops(attention_window=512) == pytest.approx(causal * 2 * 512 / 4096)
