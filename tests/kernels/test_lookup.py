"""Embedding lookup: the deterministic gradient equals scatter-add, on one device and sharded over several."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from t5like import parallel
from t5like.kernels.attention import ShardedAxes
from t5like.kernels.lookup import look_up, sum_by_id
from t5like.kernels.platform import compile_for


def text_like(count: int, rows: int, seed: int = 0) -> np.ndarray:
  """Returns ids of which a few are very frequent, as in text."""
  return (np.random.default_rng(seed).zipf(1.3, count) % rows).astype(np.int32)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("count", "rows"),
  [(1, 3), (255, 7), (256, 7), (257, 300), (5000, 1), (3000, 50), (2048, 4000)],
)
def test_rows_of_the_same_id_are_added(count, rows):
  """Compared with numpy in float64: runs of an id inside a block of 256, at its borders, and over many blocks."""
  ids = text_like(count, rows)
  gradient = np.random.default_rng(1).standard_normal((count, 3)).astype(np.float32)
  expected = np.zeros((rows, 3))
  np.add.at(expected, ids, gradient.astype(np.float64))
  np.testing.assert_allclose(sum_by_id(jnp.asarray(ids), jnp.asarray(gradient), rows), expected, atol=2e-5 * count**0.5)


@pytest.mark.slow
def test_low_precision_rows_are_added_in_float32():
  """4,000 ones: bfloat16 would stop counting at 256."""
  sums = sum_by_id(jnp.zeros(4000, jnp.int32), jnp.ones((4000, 2), jnp.bfloat16), 2)
  assert sums.dtype == jnp.float32 and sums.tolist() == [[4000.0, 4000.0], [0.0, 0.0]]


def gradients(platform, table, ids, weights, axes=None):
  def loss(table):
    rows = look_up(table, ids, jnp.float32, axes or ShardedAxes())
    return jnp.sum(rows * weights)

  with compile_for(platform):
    return jax.value_and_grad(loss)(table)


@pytest.mark.slow
def test_forward_and_gradient_are_those_of_a_gather():
  table = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
  ids = text_like(6 * 70, 40).reshape(6, 70)
  weights = np.random.default_rng(2).standard_normal((6, 70, 5)).astype(np.float32)
  ours, theirs = (gradients(platform, jnp.asarray(table), ids, weights) for platform in ("gpu", "cpu"))
  assert float(ours[0]) == float(theirs[0])
  np.testing.assert_allclose(ours[1], theirs[1], atol=1e-4)


@pytest.mark.slow
def test_ids_out_of_range_give_nan_and_have_no_gradient():
  table, ids = jnp.ones((4, 2)), jnp.array([[1, 4, 1]], jnp.int32)
  with compile_for("gpu"):
    rows = look_up(table, ids, jnp.float32)
    gradient = jax.grad(lambda t: jnp.sum(look_up(t, ids, jnp.float32)))(table)
  assert np.isnan(rows[0, 1]).all() and not np.isnan(rows[0, ::2]).any()
  assert gradient.tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 2, 2), (1, 1, 8), (2, 1, 4)])
def test_devices_sum_their_shard_of_the_batch_for_their_shard_of_the_table(sizes):
  mesh = parallel.make_mesh(parallel.MeshAxes(*sizes))
  table = np.random.default_rng(0).standard_normal((64, 5)).astype(np.float32)
  ids = text_like(8 * 100, 64).reshape(8, 100)
  weights = np.random.default_rng(2).standard_normal((8, 100, 5)).astype(np.float32)
  expected = gradients("cpu", jnp.asarray(table), ids, weights)
  axes = ShardedAxes(("data", "fsdp"), "tensor")
  placed = jax.device_put(table, NamedSharding(mesh, PartitionSpec("tensor")))
  rows = parallel.batch_sharding(mesh)
  with parallel.sharding_context(mesh):
    found = jax.jit(functools.partial(gradients, "gpu", axes=axes))(
      placed, jax.device_put(ids, rows), jax.device_put(weights, rows)
    )
  np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
  np.testing.assert_allclose(found[1], expected[1], atol=1e-4)
