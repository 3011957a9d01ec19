"""Dropout by hashes: statistics of the masks, and fused attention against plain products with the same mask."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import CASES, inputs, relative_error, value_and_gradients
from jax.sharding import NamedSharding, PartitionSpec

from t5like import parallel
from t5like.kernels.attention import AttentionSpec, Mask, ShardedAxes, attention, choose_backend, compile_for
from t5like.kernels.attention.xla import xla_attention
from t5like.kernels.dropout import AttentionDropout, dropout
from t5like.kernels.gpu.attention import TileSizes, gpu_attention
from t5like.kernels.gpu.tiles import Blocks
from t5like.kernels.tpu.attention import tpu_attention

RATE = 0.1
LENGTH = 256


def standardized(seed: int, rows: int = 1, heads: int = 1, rate: float = RATE) -> np.ndarray:
  """Returns a mask with mean 0 and variance 1 if it is right: [rows, heads, LENGTH, LENGTH]."""
  mask = AttentionDropout.draw(jax.random.key(seed), rate, rows, heads).keep(LENGTH, LENGTH)
  return (np.asarray(mask, np.float64) - (1 - rate)) / np.sqrt(rate * (1 - rate))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_mean_and_variance_of_rows_and_columns_are_binomial(rate):
  z = standardized(0, rows=4, heads=4, rate=rate)
  assert abs(z.mean()) < 4 / np.sqrt(z.size)
  for axis in (-1, -2):
    variance = (z.sum(axis) ** 2).mean() / LENGTH
    assert abs(variance - 1) < 5 * np.sqrt(2 / (z.size / LENGTH))


def test_rows_columns_heads_and_steps_are_independent():
  """Correlations of n samples have standard deviation 1 / sqrt(n); the largest singular value is that of noise."""

  def check(vectors, limit):  # [count, n]
    n = vectors.shape[1]
    correlations = (vectors @ vectors.T / n)[np.triu_indices(len(vectors), 1)] * np.sqrt(n)
    assert abs(correlations.std() - 1) < 5 / np.sqrt(2 * len(correlations)) + 0.02 and abs(correlations).max() < limit

  head = standardized(1)[0, 0]
  check(head, 6.5)
  check(head.T, 6.5)
  assert np.linalg.norm(head, 2) < 1.05 * 2 * np.sqrt(LENGTH)
  check(standardized(2, rows=6, heads=6).reshape(36, -1), 4.5)
  check(np.stack([standardized(seed).reshape(-1) for seed in range(30)]), 4.5)
  corners = head[:-1, :-1] * head[1:, :-1] * head[:-1, 1:] * head[1:, 1:]
  assert abs(corners.mean()) < 4.5 / np.sqrt(corners.size)


def test_a_mask_follows_from_its_key_alone():
  one, same, other = (AttentionDropout.draw(jax.random.key(seed), RATE, 2, 3).keep(8, 9) for seed in (1, 1, 2))
  assert (one == same).all() and (one != other).any()
  longer = AttentionDropout.draw(jax.random.key(1), RATE, 4, 3).keep(20, 30)
  np.testing.assert_array_equal(longer[:2, :, :8, :9], one)  # the mask of an entry depends on its indices alone


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(4, 32, 64), (512, 48)])
def test_hidden_dropout_scales_what_it_keeps_and_masks_gradients_in_the_same_way(shape):
  x = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
  y, backward = jax.vjp(lambda x: dropout(x, 0.25, jax.random.key(5)), x)
  keeps = np.asarray(y != 0)
  assert abs(keeps.mean() - 0.75) < 4 * np.sqrt(0.25 * 0.75 / keeps.size)
  np.testing.assert_allclose(y, np.where(keeps, x / 0.75, 0), rtol=1e-6)
  np.testing.assert_allclose(backward(jnp.ones_like(x))[0], keeps / 0.75, rtol=1e-6)


SMALL = TileSizes(Blocks(64, 32, 4, 2), Blocks(32, 64, 4, 2), Blocks(64, 32, 4, 2))
KERNELS = {
  "pallas_gpu": functools.partial(gpu_attention, tile_sizes=SMALL, interpret=True),
  "pallas_tpu": functools.partial(tpu_attention, interpret=True),
}
SLOW = pytest.mark.slow(reason="interpreting a kernel takes 10 s per case")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
  "name", [name if name == "bias, causal, odd length" else pytest.param(name, marks=SLOW) for name in CASES]
)
def test_fused_attention_equals_plain_products_with_the_same_mask(kernel, name):
  """Both in float32: values, and the gradients of queries, keys, values and the bias."""
  given = inputs(name, jnp.float32, heads=2, width=16)
  mask = AttentionDropout.draw(jax.random.key(0), RATE, given[0].shape[0], 2)
  got = value_and_gradients(functools.partial(KERNELS[kernel], dropout=mask), *given)
  expected = value_and_gradients(functools.partial(xla_attention, dropout=mask), *given)
  assert max(relative_error(got[key], expected[key]) for key in expected) < 3e-6
  without = value_and_gradients(xla_attention, *given)
  assert relative_error(without["out"], expected["out"]) > 0.1  # the mask is applied at all


def test_back_ends_with_dropout():
  spec = AttentionSpec("bfloat16", 64, 512, 512, dropout=True)
  assert choose_backend("auto", spec, "tpu")[0] == "pallas_tpu"  # not splash attention
  with compile_for("gpu"):
    assert choose_backend("auto", spec)[0] == "pallas_gpu"
    assert choose_backend("cudnn", spec) == (
      "xla",
      "unfused instead of the requested cudnn: cuDNN takes the seed of its dropout when it is compiled: every step "
      "would have the same mask",
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes", [{"data": 4}, {"data": 2, "tensor": 2}])
def test_the_mask_is_the_same_on_any_mesh(axes):
  rng = np.random.default_rng(0)
  query, key, value = (jnp.asarray(rng.normal(size=(4, 16, 4, 8)), jnp.float32) for _ in range(3))

  def run(query, key, value):
    return attention(
      query,
      key,
      value,
      mask=Mask(),
      dropout_rate=0.3,
      dropout_key=jax.random.key(1),
      axes=ShardedAxes("data", "tensor"),
    )

  mesh = jax.make_mesh((axes["data"], axes.get("tensor", 1)), ("data", "tensor"))
  place = NamedSharding(mesh, PartitionSpec("data", None, "tensor", None))
  with parallel.sharding_context(mesh):
    split = jax.jit(run)(*(jax.device_put(x, place) for x in (query, key, value)))
  np.testing.assert_allclose(split, jax.jit(run)(query, key, value), atol=1e-6)
