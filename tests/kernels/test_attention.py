"""Attention compared with published tables and matrices, and with arithmetic done by hand."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import CASES, inputs, relative_error, value_and_gradients

from t5like.errors import UserError
from t5like.kernels.attention import (
  AttentionSpec,
  Mask,
  RelativeBias,
  attention,
  bias_matrix,
  check_backend,
  choose_backend,
  compile_for,
  dividing_axes,
  mask_matrix,
  relative_buckets,
)
from t5like.kernels.attention.masks import mask_codes, visible
from t5like.kernels.attention.xla import xla_attention
from t5like.kernels.platform import deterministic_kernels
from t5like.kernels.products import product


def first_distances(starts: dict[int, int], limit: int) -> list[int]:
  """Returns the bucket of each distance 0..limit-1, given the first distance of each bucket."""
  buckets, current = [], 0
  for distance in range(limit):
    current = starts.get(distance, current)
    buckets.append(current)
  return buckets


def test_bidirectional_buckets_equal_the_published_table():
  starts = {d: d for d in range(9)} | {12: 9, 16: 10, 23: 11, 32: 12, 46: 13, 64: 14, 91: 15}
  past = first_distances(starts, 300)
  ours = relative_buckets(-jnp.arange(300), 32, 128, bidirectional=True)
  np.testing.assert_array_equal(ours, past)
  future = relative_buckets(jnp.arange(1, 300), 32, 128, bidirectional=True)
  np.testing.assert_array_equal(future, np.array(past[1:]) + 16)


def test_causal_buckets_equal_the_published_table():
  logarithmic = {19: 17, 21: 18, 24: 19, 27: 20, 31: 21, 35: 22, 40: 23, 46: 24, 52: 25, 59: 26, 67: 27, 77: 28, 87: 29}
  starts = {d: d for d in range(17)} | logarithmic | {99: 30, 113: 31}
  ours = relative_buckets(-jnp.arange(300), 32, 128, bidirectional=False)
  np.testing.assert_array_equal(ours, first_distances(starts, 300))
  assert not np.any(relative_buckets(jnp.arange(300), 32, 128, bidirectional=False)), "the future is bucket 0"


def test_a_number_of_buckets_that_is_not_divisible_by_four():
  """30 buckets, as in transformers."""
  starts = {d: d for d in range(8)} | {11: 8, 15: 9, 21: 10, 30: 11, 44: 12, 62: 13, 90: 14}
  past = first_distances(starts, 300)
  np.testing.assert_array_equal(relative_buckets(-jnp.arange(300), 30, 128, bidirectional=True), past)
  future = relative_buckets(jnp.arange(1, 300), 30, 128, bidirectional=True)
  np.testing.assert_array_equal(future, np.array(past[1:]) + 15)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lengths", [(1, 1), (1, 6), (6, 1), (5, 5), (4, 9), (9, 4)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_bias_matrix_equals_a_lookup(lengths, bidirectional):
  table = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
  bias = RelativeBias(jnp.asarray(table), bidirectional, max_distance=20)
  query, key = lengths
  distance = np.arange(key)[None, :] - np.arange(query)[:, None]
  buckets = np.asarray(relative_buckets(jnp.asarray(distance), 8, 20, bidirectional))
  expected = table[buckets].transpose(2, 0, 1)[None]  # [1, heads, query, key]
  np.testing.assert_array_equal(bias_matrix(bias, query, key), expected)
  offset = jnp.array([0, 2])
  shifted = np.asarray(bias_matrix(bias, query, key, query_offset=offset))
  np.testing.assert_array_equal(shifted[0], expected[0])
  later = np.asarray(relative_buckets(jnp.asarray(distance - 2), 8, 20, bidirectional))
  np.testing.assert_array_equal(shifted[1], table[later].transpose(2, 0, 1))


def test_bias_gradient_counts_each_bucket():
  """The gradient of the sum of the matrix is the number of occurrences of each bucket."""

  def bias(table):
    return RelativeBias(table, bidirectional=True, max_distance=20)

  counts = jax.grad(lambda table: bias_matrix(bias(table), 6, 6).sum())(jnp.zeros((8, 2)))
  distance = jnp.arange(6)[None, :] - jnp.arange(6)[:, None]
  expected = np.bincount(np.ravel(relative_buckets(distance, 8, 20, True)), minlength=8)
  np.testing.assert_array_equal(counts, np.stack([expected, expected], axis=1))


# The matrices of T5X's make_decoder_mask, as its documentation and tests print them.
T5X_MASKS = {
  "language model": dict(
    tokens=[6, 7, 3, 0], segments=None, prefix=None,
    matrix=["1000", "1100", "1110", "0000"],
  ),
  "packed language model": dict(
    tokens=[6, 7, 3, 4, 5, 0], segments=[1, 1, 1, 2, 2, 0], prefix=None,
    matrix=["100000", "110000", "111000", "000100", "000110", "000000"],
  ),
  "prefix LM": dict(
    tokens=[5, 6, 7, 3, 4, 0], segments=None, prefix=[1, 1, 1, 0, 0, 0],
    matrix=["111000", "111000", "111000", "111100", "111110", "000000"],
  ),
  "packed prefix LM": dict(
    tokens=[5, 6, 7, 8, 3, 4, 0], segments=[1, 1, 1, 2, 2, 2, 0], prefix=[1, 1, 0, 1, 1, 0, 0],
    matrix=["1100000", "1100000", "1110000", "0001100", "0001100", "0001110", "0000000"],
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", T5X_MASKS)
def test_masks_equal_published_matrices(name):
  case = T5X_MASKS[name]
  tokens = jnp.array([case["tokens"]])
  segments = jnp.array([case["segments"]]) if case["segments"] else (tokens > 0).astype(jnp.int32)
  prefix = jnp.array([case["prefix"]]) if case["prefix"] else None
  mask = Mask(causal=True, prefix=prefix, query_segments=segments, key_segments=segments, key_valid=tokens > 0)
  length = tokens.shape[1]
  expected = np.array([[int(c) for c in row] for row in case["matrix"]])
  np.testing.assert_array_equal(mask_matrix(mask, length, length)[0, 0], expected)


def test_offset_moves_the_causal_mask():
  matrix = mask_matrix(Mask(causal=True), 1, 4, query_offset=jnp.array([0, 2]))
  np.testing.assert_array_equal(matrix[:, 0, 0], [[1, 0, 0, 0], [1, 1, 1, 0]])
  assert mask_matrix(Mask(), 3, 3) is None


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_indices_and_codes_of_positions_give_the_matrix_of_a_mask(causal, window):
  """They are what the kernels of accelerators read of it, tile by tile."""
  segments, inside, real = (jnp.array([x]) for x in ([1, 1, 1, 2, 2, 2], [1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 0, 1]))
  packed, prefix = dict(query_segments=segments, key_segments=segments), dict(prefix=inside)
  at, all_pairs = jnp.arange(6), np.ones((6, 6), bool)
  for given in ({}, packed, prefix, dict(key_valid=real), packed | prefix | dict(key_valid=real)):
    mask = Mask(causal=causal, window=window, **given)
    codes = mask_codes(mask, 1, 6, 6)
    query, key = (None, None) if codes is None else (codes.query[0][:, None], codes.key[0][None, :])
    found, matrix = visible(at[:, None], at[None, :], query, key, causal, window), mask_matrix(mask, 6, 6)
    found, expected = (all_pairs if x is None else all_pairs & np.asarray(x) for x in (found, matrix))
    np.testing.assert_array_equal(found, expected.reshape(6, 6))


def test_attention_by_hand():
  """Two keys with scores 0 and ln 3 get the weights 1/4 and 3/4; the scale doubles the score."""
  query = jnp.array([[[[1.0, 0.0]]]])  # [1, 1, 1, 2]
  key = jnp.array([[[[0.0, 5.0]], [[0.5 * np.log(3.0), 0.0]], [[9.0, 0.0]]]])
  value = jnp.array([[[[4.0, 0.0]], [[0.0, 4.0]], [[100.0, 100.0]]]])
  mask = Mask(key_valid=jnp.array([[1, 1, 0]]))
  out = attention(query, key, value, mask=mask, scale=2.0)
  np.testing.assert_allclose(out, [[[[1.0, 3.0]]]], rtol=1e-6)


def test_softmax_is_float32_under_bfloat16():
  """64 equal keys: bfloat16 sums would drift from the mean by more than one rounding of the result."""
  rng = np.random.default_rng(0)
  value = jnp.asarray(rng.normal(size=(1, 64, 1, 4)), jnp.bfloat16)
  zeros = jnp.zeros((1, 64, 1, 4), jnp.bfloat16)
  out = attention(zeros[:, :1], zeros, value, mask=Mask())
  assert out.dtype == jnp.bfloat16
  expected = np.mean(np.asarray(value, np.float32), axis=1, keepdims=True)
  np.testing.assert_allclose(np.asarray(out, np.float32), expected, atol=2**-8 * np.abs(expected).max() + 1e-3)


def test_scores_of_bfloat16_are_not_rounded():
  """256 and 257, one bfloat16 number: the second key gets e / (1 + e) of the weight."""
  query = jnp.ones((1, 1, 1, 2), jnp.bfloat16)
  key = jnp.array([[[[1.0, 0.0]], [[1.0, 2.0**-8]]]], jnp.bfloat16)
  value = jnp.array([[[[0.0, 0.0]], [[1.0, 1.0]]]], jnp.bfloat16)
  out = attention(query, key, value, mask=Mask(), scale=256.0)
  np.testing.assert_allclose(np.asarray(out, np.float32), 1 / (1 + np.exp(-1)), rtol=2**-8)


def test_bfloat16_products_that_xla_lacks_on_a_cpu():
  """A product without common axes: Synthesizers have it."""
  x, y = jnp.ones((2, 3, 2, 5), jnp.bfloat16), jnp.full((5, 7), 1 + 2**-7, jnp.bfloat16)
  found = jax.jit(lambda x, y: product("bqhd,dk->bhqk", x, y, jnp.float32))(x, y)
  np.testing.assert_array_equal(found, np.full((2, 2, 3, 7), 5 + 5 * 2**-7, np.float32))


def test_the_backward_pass_of_bfloat16_products_is_in_bfloat16():
  """A float32 product would take eight times as long."""
  x, y = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4), jnp.bfloat16)
  weights = jnp.arange(8.0).reshape(2, 4)
  loss = lambda x, y: jnp.sum(weights * product("ij,jk->ik", x, y, jnp.float32))  # noqa: E731
  d_x, d_y = jax.grad(loss, argnums=(0, 1))(x, y)
  assert d_x.dtype == d_y.dtype == jnp.bfloat16
  np.testing.assert_array_equal(np.asarray(d_x, np.float32), [[6.0] * 3, [22.0] * 3])
  np.testing.assert_array_equal(np.asarray(d_y, np.float32), [[4.0, 6.0, 8.0, 10.0]] * 3)
  kinds = [
    eqn.outvars[0].aval.dtype for eqn in jax.make_jaxpr(jax.grad(loss))(x, y).eqns if "dot" in str(eqn.primitive)
  ]
  assert kinds[-1] == jnp.bfloat16
  assert product("ij,jk->ik", x, y, jnp.float32).dtype == jnp.float32


def test_a_row_of_padding_stays_finite():
  x = jnp.ones((1, 3, 2, 4))
  out, grad = jax.value_and_grad(lambda q: attention(q, x, x, mask=Mask(key_valid=jnp.zeros((1, 3)))).sum())(x)
  assert np.isfinite(out) and np.all(np.isfinite(grad))


@pytest.mark.slow
def test_dropout_keeps_the_mean():
  x = jnp.ones((1, 1, 1, 1))
  keys = jnp.ones((1, 4000, 1, 1))
  out = attention(x, keys, keys, mask=Mask(), dropout_rate=0.25, dropout_key=jax.random.key(0))
  assert abs(float(out[0, 0, 0, 0]) - 1.0) < 0.05 and float(out[0, 0, 0, 0]) != 1.0


def test_unknown_backend_names_the_choices():
  with pytest.raises(UserError) as error:
    check_backend("xlaa")
  assert "auto, xla, pallas_gpu, cudnn, splash_tpu, pallas_tpu" in str(error.value) and "attention_backend" in str(
    error.value
  )


SPEC = AttentionSpec(dtype="bfloat16", head_dim=64, query_length=512, key_length=512, has_bias=True)


def test_a_backend_of_another_device_is_rejected():
  with pytest.raises(UserError) as error:
    choose_backend("pallas_tpu", SPEC, platform="cpu")
  assert all(word in str(error.value) for word in ("pallas_tpu", "tpu", "cpu", 'ATTENTION_BACKEND="auto"'))
  assert choose_backend("pallas_tpu", SPEC, platform="tpu")[0] == "pallas_tpu"


@pytest.mark.parametrize(
  "platform, change, chosen, reason",
  [
    ("cpu", {}, "xla", "no fused attention for cpu"),
    ("tpu", {}, "pallas_tpu", "computes T5's bias"),
    ("tpu", dict(dtype="float32"), "pallas_tpu", ""),
    ("tpu", dict(has_bias=False), "splash_tpu", "no bias"),
    ("tpu", dict(has_bias=False, has_prefix=True), "pallas_tpu", ""),
    ("tpu", dict(query_length=16, key_length=16), "xla", "fast enough for 16 x 16 scores"),
    ("tpu", dict(dropout=True), "pallas_tpu", "computes T5's bias"),
    ("tpu", dict(dropout=True, has_bias=False), "pallas_tpu", ""),
    ("tpu", dict(cached=True, query_length=1), "xla", "a decoding step"),
    ("gpu", {}, "pallas_gpu", "computes T5's bias"),
    ("gpu", dict(has_bias=False), "pallas_gpu", "GPUs since Hopper"),
    ("gpu", dict(has_bias=False, packed=True), "pallas_gpu", "skips other examples in packed rows"),
    ("gpu", dict(head_dim=32), "pallas_gpu", ""),
    ("gpu", dict(head_dim=80), "cudnn", "NVIDIA"),
    ("gpu", dict(dtype="float32"), "xla", "cuDNN does not support float32"),
    ("gpu", dict(head_dim=60), "xla", "does not support HEAD_DIM 60"),
    ("gpu", dict(head_dim=256), "xla", "does not support HEAD_DIM 256"),
    ("gpu", dict(dropout=True), "pallas_gpu", "GPUs since Hopper"),
    ("gpu", dict(dropout=True, head_dim=80), "xla", "every step would have the same mask"),
  ],
)
def test_the_choice_has_a_reason(platform, change, chosen, reason):
  with compile_for(platform):
    name, why = choose_backend("auto", dataclasses.replace(SPEC, **change))
  assert name == chosen and reason in why


@pytest.mark.parametrize(
  "capability, version, dtype, head_dim, chosen",
  [
    ("9.0", "cuda 12080", "bfloat16", 64, "pallas_gpu"),
    ("10.0", "cuda 12080", "bfloat16", 64, "pallas_gpu"),
    ("8.9", "cuda 12080", "bfloat16", 64, "cudnn"),
    ("8.0", "cuda 12080", "float16", 128, "cudnn"),
    ("7.5", "cuda 12080", "float16", 64, "xla"),
    ("9.0", "rocm 6", "bfloat16", 64, "xla"),
  ],
)
def test_the_gpu_of_this_machine_decides(monkeypatch, capability, version, dtype, head_dim, chosen):
  client = types.SimpleNamespace(platform_version=version)
  device = types.SimpleNamespace(compute_capability=capability, client=client, device_kind="GPU")
  monkeypatch.setattr(jax, "local_devices", lambda: [device])
  spec = dataclasses.replace(SPEC, dtype=dtype, head_dim=head_dim)
  name, why = choose_backend("auto", spec, platform="gpu")
  assert name == chosen and (chosen != "xla" or "needs an NVIDIA GPU of capability 8.0" in why)


def test_kernels_are_used_from_128_by_128_scores():
  for queries, keys, chosen in ((128, 128, "pallas_tpu"), (128, 127, "xla"), (64, 256, "pallas_tpu")):
    spec = dataclasses.replace(SPEC, query_length=queries, key_length=keys)
    assert choose_backend("auto", spec, platform="tpu")[0] == chosen


def test_axes_that_do_not_divide_are_not_sharded():
  mesh = jax.sharding.AbstractMesh((2, 4, 1), ("data", "fsdp", "tensor"))
  for axes, size, expected in (
    (("data", "fsdp"), 16, ("data", "fsdp")), (("data", "fsdp"), 12, None), ("data", 6, ("data",)), ("tensor", 8, None),
    (("data", "tensor"), 6, ("data",)), (None, 8, None), ("unknown", 8, None),
  ):  # fmt: skip
    assert dividing_axes(mesh, axes, size) == expected


def test_a_deterministic_step_does_not_use_cudnn():
  """Its backward pass uses atomic additions, at which a deterministic compilation fails."""
  with compile_for("gpu"), deterministic_kernels():
    assert choose_backend("auto", dataclasses.replace(SPEC, has_bias=False))[0] == "pallas_gpu"
    name, why = choose_backend("auto", dataclasses.replace(SPEC, head_dim=80))
    assert name == "xla" and "atomic additions" in why
    with pytest.raises(UserError, match="not deterministic") as error:
      choose_backend("cudnn", SPEC)
    assert "DETERMINISTIC=False" in str(error.value)
  with compile_for("gpu"):
    assert choose_backend("cudnn", SPEC)[0] == "cudnn"


def test_a_requested_backend_falls_back_if_it_does_not_support_a_call():
  no_bias = dataclasses.replace(SPEC, dropout=True, has_bias=False)
  name, why = choose_backend("splash_tpu", no_bias, platform="tpu")
  assert name == "xla" and "instead of the requested splash_tpu" in why and "dropout" in why
  name, why = choose_backend("splash_tpu", SPEC, platform="tpu")
  assert name == "xla" and "requested splash_tpu: splash attention has no bias" in why


def test_unfused_attention_is_used_without_pallas_for_triton(monkeypatch):
  """Its removal from JAX is announced."""
  monkeypatch.setattr("t5like.kernels.attention.has_pallas_triton", lambda: False)
  with compile_for("gpu"):
    assert choose_backend("auto", SPEC) == ("xla", "unfused: this version of JAX has no Pallas for Triton")
    assert choose_backend("auto", dataclasses.replace(SPEC, has_bias=False))[0] == "cudnn"


def test_a_mask_of_numpy_arrays_hides_keys_of_long_rows(monkeypatch):
  """As when a model is initialized with a batch, whose arrays are not traced."""
  query, key, value, _, mask, _ = inputs("bias, padded", jnp.float32, width=8)
  assert mask.key_valid is not None
  expected = xla_attention(query, key, value, mask, None, 1.0)
  monkeypatch.setattr("t5like.kernels.attention.xla._MIN_BLOCKED_SCORES", 1)
  found = xla_attention(query, key, value, jax.tree.map(np.asarray, mask), None, 1.0)
  assert relative_error(found, expected) < 1e-5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [name for name in CASES if "prefix" not in name])
def test_long_rows_in_blocks_equal_unblocked_attention(name, monkeypatch):
  """On a CPU: one head and one block of queries at a time, with the last block partly filled."""
  given = inputs(name, jnp.float32, width=8)
  expected = value_and_gradients(xla_attention, *given)
  monkeypatch.setattr("t5like.kernels.attention.xla._MIN_BLOCKED_SCORES", 1)
  monkeypatch.setattr("t5like.kernels.attention.xla._BLOCK", 24)
  mask, _ = given[4:]
  traced = jax.make_jaxpr(lambda q, k, v: xla_attention(q, k, v, mask, None, 1.0))(*given[:3])
  assert "scan" in str(traced)
  found = value_and_gradients(xla_attention, *given)
  for key in expected:
    assert relative_error(found[key], expected[key]) < 1e-5, key
