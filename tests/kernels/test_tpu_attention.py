"""The TPU's fused attentions, interpreted on a CPU, compared with XLA attention; bias tiles by definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import inputs, relative_error, value_and_gradients

from t5like import parallel
from t5like.kernels.attention import Mask, ShardedAxes, _run_sharded, splash
from t5like.kernels.attention.xla import xla_attention
from t5like.kernels.tpu import attention as kernel
from t5like.kernels.tpu.bias_tiles import strips, tile_from_window, window_from_tile

interpreted = functools.partial(kernel.tpu_attention, interpret=True)
interpreted_splash = functools.partial(splash.splash_attention, interpret=True)


@pytest.fixture
def small_tiles(monkeypatch):
  """Gives short rows several tiles in both directions."""
  monkeypatch.setattr(kernel, "MAX_BLOCK", 128)
  monkeypatch.setattr(splash, "MAX_BLOCK", 128)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "name",
  [
    "bias, packed", "bias, causal, odd length", "prefix, packed",
    *(pytest.param(name, marks=pytest.mark.slow(reason="interpreting a kernel takes 10 s per case")) for name in (
      "bias", "no bias", "causal", "bias, padded", "bias, holes", "cross, padded", "bias, causal, packed",
      "cross, packed", "bias, prefix",
    )),
  ],
)  # fmt: skip
def test_values_and_gradients_equal_xla_attention(name, small_tiles):
  """Both in float32: 2e-6 is the rounding of sums in a different order."""
  given = inputs(name, jnp.float32, heads=2, width=8)
  got, expected = value_and_gradients(interpreted, *given), value_and_gradients(xla_attention, *given)
  assert {key: relative_error(got[key], expected[key]) < 2e-6 for key in expected} == dict.fromkeys(expected, True)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  [
    "causal, packed, odd length",
    *(pytest.param(name, marks=pytest.mark.slow(reason="interpreting a kernel takes 10 s per case")) for name in (
      "causal", "no bias", "cross, padded", "cross, packed",
    )),
  ],
)  # fmt: skip
def test_splash_attention_equals_xla_attention(name, small_tiles):
  given = inputs(name, jnp.float32, heads=2, width=8)
  got, expected = value_and_gradients(interpreted_splash, *given), value_and_gradients(xla_attention, *given)
  assert {key: relative_error(got[key], expected[key]) < 2e-6 for key in expected} == dict.fromkeys(expected, True)


def test_bias_tiles_and_their_transpose():
  """By definition: entry (r, c) of a tile is the strip's value at c - r; the gradient sums along diagonals."""
  rng = np.random.default_rng(0)
  values = rng.normal(size=(1, 256 + 384)).astype(np.float32)
  rows, columns, start = 32, 128, 256
  window = strips(jnp.asarray(values))[0, :, start : start + rows + columns]
  index = start + rows + np.arange(columns)[None, :] - np.arange(rows)[:, None]
  np.testing.assert_array_equal(jax.jit(tile_from_window, static_argnums=1)(window, rows), values[0, index])
  tile = rng.normal(size=(rows, columns)).astype(np.float32)
  folded = np.asarray(jax.jit(window_from_tile)(tile), np.float64)  # [8, rows + columns]
  sums = sum(np.roll(folded[s], -s) for s in range(8))
  expected = np.zeros(rows + columns)
  np.add.at(expected, index - start, tile)
  np.testing.assert_allclose(sums, expected, atol=1e-5)


@pytest.mark.slow
def test_rows_and_heads_stay_on_their_devices(small_tiles):
  """Over 4 x 2 devices, the bias gradient is summed over all rows and equals that of one device."""
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2), jax.devices()[:8])
  rng = np.random.default_rng(0)
  query, key, value, weights = (jnp.asarray(rng.normal(size=(8, 32, 4, 8)), jnp.float32) for _ in range(4))
  segments = jnp.asarray(rng.integers(0, 2, (8, 32)).cumsum(axis=1) // 8 + 1, jnp.int32)
  mask = Mask(causal=True, query_segments=segments, key_segments=segments)
  table = jnp.asarray(rng.normal(size=(32, 4)), jnp.float32)
  axes = ShardedAxes(("data", "fsdp"), "tensor")

  def on_devices(*given):
    return _run_sharded(interpreted, *given, None, axes)

  expected = value_and_gradients(xla_attention, query, key, value, weights, mask, table)
  with jax.set_mesh(mesh):
    got = value_and_gradients(on_devices, query, key, value, weights, mask, table)
  assert max(relative_error(got[key], expected[key]) for key in expected) < 2e-6
  assert tuple(got["d_query"].sharding.spec)[:3] == (("data", "fsdp"), None, "tensor")
