"""Grouped heads, windows and ALiBi: every attention compared with plain products of repeated keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import relative_error

from t5like.kernels.attention import Alibi, AttentionSpec, Mask, alibi_slopes, attention, choose_backend, splash
from t5like.kernels.attention.cached import DistanceBias, GeneratedKV, SharedKV, attend_and_write
from t5like.kernels.attention.xla import xla_attention
from t5like.kernels.gpu.attention import TileSizes, gpu_attention
from t5like.kernels.gpu.tiles import Blocks
from t5like.kernels.tpu.attention import tpu_attention

SLOW = pytest.mark.slow(reason="interpreting a kernel takes seconds per case")
TILES = TileSizes(Blocks(16, 32, 4, 2), Blocks(32, 16, 4, 2), Blocks(16, 32, 4, 2))
KERNELS = {
  "xla": xla_attention,
  "gpu": functools.partial(gpu_attention, tile_sizes=TILES, interpret=True),
  "tpu": functools.partial(tpu_attention, interpret=True),
  "splash": functools.partial(splash.splash_attention, interpret=True),
}
# name: (length, fields of the mask, has ALiBi)
CASES = {
  "packed, window": (70, dict(causal=True, window=9), False),
  "window": (70, dict(causal=True, window=20), False),
  "alibi": (40, dict(causal=True), True),
  "alibi, prefix, window": (48, dict(causal=True, window=20), True),
}
# Long enough for tiles outside the window on a TPU, whose tiles have 128 positions.
LENGTH = {"tpu": 300, "splash": 300}


def inputs(case: str, kernel: str):
  length, fields, alibi = CASES[case]
  length = LENGTH.get(kernel, length)
  rng = np.random.default_rng(0)
  query, key, value, weights = (
    jnp.asarray(rng.normal(size=(2, length, heads, 16)), jnp.float32) for heads in (4, 2, 2, 4)
  )
  at = np.arange(length)
  if "packed" in case:
    segments = jnp.asarray(np.stack([1 + (at > length // 3), np.where(at < length - 5, 1, 0)]), jnp.int32)
    fields = fields | dict(query_segments=segments, key_segments=segments)
  if "prefix" in case:
    fields = fields | dict(prefix=jnp.asarray(at[None] < np.array([[length // 2], [5]])))
  return query, key, value, weights, Mask(**fields), Alibi(jnp.asarray(alibi_slopes(4))[None]) if alibi else None


def plain(query, key, value, mask: Mask, bias: Alibi | None, scale: float):
  """Softmax attention by definition: keys repeated, distances and conditions as matrices."""
  key, value = (jnp.repeat(x, 2, axis=2) for x in (key, value))
  at = np.arange(query.shape[1])
  back = at[:, None] - at[None, :]
  allowed = (back >= 0)[None]
  if mask.prefix is not None:
    inside = np.asarray(mask.prefix)
    allowed = allowed | (inside[:, :, None] & inside[:, None, :])
  if mask.window is not None:
    allowed = allowed & (np.abs(back) < mask.window)[None]
  if mask.query_segments is not None:
    segments = np.asarray(mask.query_segments)
    allowed = allowed & (segments[:, :, None] == segments[:, None, :])
  scores = scale * jnp.einsum("bqhd,bkhd->bhqk", query, key)
  if bias is not None:
    scores = scores - np.asarray([1 / 4, 1 / 16, 1 / 64, 1 / 256], np.float32)[None, :, None, None] * np.abs(back)
  return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(allowed[:, None], scores, -jnp.inf)), value)


DEFAULT = {("xla", "packed, window"), ("gpu", "packed, window"), ("gpu", "alibi, prefix, window"), ("tpu", "window")}


@pytest.mark.parametrize(
  "kernel, case",
  [
    pytest.param(kernel, case, marks=[] if (kernel, case) in DEFAULT else [SLOW])
    for kernel in KERNELS
    for case in CASES
    if kernel != "splash" or "alibi" not in case
  ],
)
def test_values_and_gradients_equal_plain_products(kernel, case, monkeypatch):
  monkeypatch.setattr(splash, "MAX_BLOCK", 128)
  query, key, value, weights, mask, bias = inputs(case, kernel)

  def run(attend):
    def weighted(*qkv):
      out = attend(*qkv, mask, bias, 0.3)
      return jnp.sum(out * weights), out

    return jax.jit(jax.grad(weighted, argnums=(0, 1, 2), has_aux=True))(query, key, value)

  with jax.numpy_dtype_promotion("standard"):
    (expected_gradients, expected), (gradients, got) = run(plain), run(KERNELS[kernel])
  assert relative_error(got, expected) < 2e-6
  assert max(map(relative_error, gradients, expected_gradients)) < 2e-6


def test_long_rows_on_a_cpu_are_processed_in_blocks(monkeypatch):
  monkeypatch.setattr("t5like.kernels.attention.xla._MIN_BLOCKED_SCORES", 70 * 70)
  query, key, value, _, mask, bias = inputs("packed, window", "xla")
  got = jax.jit(lambda q, k, v: attention(q, k, v, mask=mask, bias=bias, scale=0.3))(query, key, value)
  with jax.numpy_dtype_promotion("standard"):
    assert relative_error(got, plain(query, key, value, mask, bias, 0.3)) < 2e-6


def test_slopes():
  """Press et al. 2021: 2^-1 .. 2^-8 for 8 heads; between powers of two, every other slope of the next one follows."""
  np.testing.assert_allclose(alibi_slopes(8), 0.5 ** np.arange(1, 9), rtol=1e-7)
  np.testing.assert_allclose(alibi_slopes(6), 2.0 ** -np.array([2, 4, 6, 8, 1, 3]), rtol=1e-7)


@pytest.mark.parametrize("kernel", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("hypotheses", [1, pytest.param(2, marks=SLOW)])
def test_a_decoding_step(kernel, hypotheses):
  """Queries of a group read one head of keys, within a window of what was generated; the token's key is written."""
  rng = np.random.default_rng(0)
  batch, heads, kv_heads, kv, prompt, steps, position, window = 2, 4, 2, 6, 5, 70, 40, 33
  rows = batch * hypotheses
  normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
  query, new = normal(rows, heads, kv), normal(rows, 2, kv_heads, kv)
  past, shared = normal(rows, 2, kv_heads, steps, kv), normal(batch, 2, kv_heads, prompt, kv)
  table, valid = normal(heads, prompt + steps), jnp.asarray([[True] * 5, [True, True, False, False, False]])
  origins = None
  if hypotheses > 1:  # each has its own past
    origins = jnp.broadcast_to(jnp.arange(hypotheses, dtype=jnp.int32)[None, :, None], (batch, hypotheses, steps))
  index = jnp.full((rows,), prompt + position, jnp.int32)
  got, written = attend_and_write(
    (query, new), GeneratedKV(past, jnp.int32(position), origins, window), SharedKV(shared, valid),
    DistanceBias(table, index), 0.5, kernel=kernel, interpret=True,
  )  # fmt: skip
  expected = np.array(past)
  expected[:, :, :, position] = new
  np.testing.assert_array_equal(written, expected)
  for row in range(rows):
    for head in range(heads):
      own, seen = np.arange(position - window + 1, position + 1), np.flatnonzero(valid[row // hypotheses])
      keys, values = (
        np.concatenate(
          [np.asarray(shared)[row // hypotheses, part, head // 2, seen], expected[row, part, head // 2, own]]
        )
        for part in (0, 1)
      )
      bias = np.concatenate(
        [np.asarray(table)[head, prompt + position - seen], np.asarray(table)[head, position - own]]
      )
      scores = 0.5 * keys @ np.asarray(query)[row, head] + bias
      weights = np.exp(scores - scores.max())
      np.testing.assert_allclose(got[row, head], weights @ values / weights.sum(), atol=1e-5)


@pytest.mark.parametrize(
  "platform, spec, backend",
  [
    ("tpu", {}, "splash_tpu"),
    ("tpu", {"has_bias": True}, "pallas_tpu"),  # ALiBi
    ("gpu", {"has_bias": True}, "pallas_gpu"),
    ("gpu", {"has_bias": True, "head_dim": 80}, "xla"),  # deterministic, so not cuDNN
  ],
)
def test_a_kernel_that_supports_the_call_is_chosen(platform, spec, backend, monkeypatch):
  from t5like.kernels.attention import compile_for
  from t5like.kernels.platform import deterministic_kernels

  fields = dict(dtype="bfloat16", head_dim=64, query_length=512, key_length=512) | spec
  with compile_for(platform), deterministic_kernels(True):
    assert choose_backend("auto", AttentionSpec(**fields))[0] == backend


@pytest.mark.slow
@pytest.mark.parametrize("case", ["packed, window", "alibi, prefix, window"])
def test_kernels_lower_for_gpus(case):
  """Forward and both backward kernels, and a decoding step's, as Triton compiles them."""
  query, key, value, _, mask, bias = inputs(case, "gpu")
  query, key, value = (jnp.tile(x, (1, 1, 1, 4)).astype(jnp.bfloat16) for x in (query, key, value))

  def loss(*qkv):
    return gpu_attention(*qkv, mask, bias, 0.125).astype(jnp.float32).sum()

  def step(new, keys, past, shared, valid):
    generated = GeneratedKV(past, jnp.int32(3), None, 9)
    return attend_and_write((new, keys), generated, SharedKV(shared, valid), None, 0.125, kernel=True)

  half = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)  # noqa: E731
  cached = half(2, 4, 64), half(2, 2, 2, 64), half(2, 2, 2, 32, 64), half(2, 2, 2, 16, 64)
  valid = jax.ShapeDtypeStruct((2, 16), bool)
  for function, given, kernels in ((jax.grad(loss, (0, 1, 2)), (query, key, value), 3), (step, (*cached, valid), 1)):
    text = jax.jit(function).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == kernels
