"""The GPU's fused attention, interpreted on a CPU, compared with XLA attention; bias, skipped tiles by definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import CASES, inputs, relative_error, value_and_gradients

from t5like.kernels.attention import (
  Mask,
  RelativeBias,
  ShardedAxes,
  _run_sharded,
  attention,
  bias_matrix,
  mask_matrix,
)
from t5like.kernels.attention.relative_bias import relative_buckets
from t5like.kernels.attention.xla import xla_attention
from t5like.kernels.dropout import AttentionDropout
from t5like.kernels.gpu import bias_tiles as tiles
from t5like.kernels.gpu import masks
from t5like.kernels.gpu.attention import TILE_SIZES, TileSizes, gpu_attention
from t5like.kernels.gpu.tiles import Blocks, KernelSpec

SLOW = pytest.mark.slow(reason="interpreting a kernel takes 10 s per case")
# Short rows have several tiles in both directions; tiles are wide or tall.
SMALL = TileSizes(Blocks(64, 32, 4, 2), Blocks(32, 64, 4, 2), Blocks(64, 32, 4, 2))
interpreted = functools.partial(gpu_attention, tile_sizes=SMALL, interpret=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "name",
  [
    "bias, packed", "bias, causal, odd length",
    *(pytest.param(name, marks=SLOW) for name in CASES if name not in ("bias, packed", "bias, causal, odd length")),
  ],
)  # fmt: skip
def test_values_and_gradients_equal_xla_attention(name):
  """Both in float32: 2e-6 is the rounding of sums in a different order."""
  given = inputs(name, jnp.float32, heads=2, width=16)
  got, expected = value_and_gradients(interpreted, *given), value_and_gradients(xla_attention, *given)
  assert max(relative_error(got[key], expected[key]) for key in expected) < 2e-6


@pytest.mark.parametrize("name, rate", [("bias, causal, odd length", 0.3), ("causal, packed, odd length", 0.0)])
def test_one_array_of_queries_keys_and_values(name, rate):
  """The same kernels read and write parts of it: results and gradients are equal to the last bit."""
  query, key, value, weights, mask, table = inputs(name, jnp.float32, heads=2, width=16)
  bias = None if table is None else RelativeBias(table, bidirectional=False)
  dropout = AttentionDropout.draw(jax.random.key(0), rate, len(query), 2) if rate else None

  @jax.jit
  def run(*given):
    attend = lambda *arrays: interpreted(*arrays, *[None] * (3 - len(arrays)), mask, bias, 0.3, dropout)  # noqa: E731
    out, pull_back = jax.vjp(attend, *given)
    return out, pull_back(weights)

  expected, gradients = run(query, key, value)
  for apart in (0, 1):
    given = query, key, value
    got, found = run(*given[:apart], jnp.stack(given[apart:], axis=2))
    np.testing.assert_array_equal(got, expected)
    jax.tree.map(np.testing.assert_array_equal, found, (*gradients[:apart], jnp.stack(gradients[apart:], axis=2)))


@pytest.mark.parametrize("apart", [0, 1])
def test_one_array_on_a_mesh(apart):
  """Rows and heads are sharded, parts are not."""
  *arrays, _, mask, _ = jax.tree.map(
    lambda x: jnp.concatenate([x, x[:1]]), inputs("causal, packed, odd length", jnp.float32, heads=2, width=16)
  )  # four rows
  arrays = [*arrays[:apart], jnp.stack(arrays[apart:], axis=2)]
  arrays += [None] * (3 - len(arrays))
  expected = jax.jit(lambda *given: interpreted(*given, mask, None, 0.3))(*arrays)
  mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  with jax.sharding.set_mesh(mesh):
    got = jax.jit(
      lambda *given: _run_sharded(interpreted, *given, mask, None, 0.3, None, ShardedAxes("data", "tensor"))
    )(*arrays)
  assert len(got.sharding.device_set) == 8
  np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_a_back_end_without_the_array_takes_its_parts():
  query, key, value, _, mask, _ = inputs("causal", jnp.float32, heads=2, width=16)
  expected = attention(query, key, value, mask=mask, scale=0.3, backend="xla")
  given = query, key, value
  for apart in (0, 1):
    arrays = [*given[:apart], jnp.stack(given[apart:], axis=2), *[None] * 2][:3]
    np.testing.assert_array_equal(attention(*arrays, mask=mask, scale=0.3, backend="xla"), expected)


def test_one_array_of_keys_and_values_of_groups():
  """Two heads of queries for each of keys: gradients are sums of both."""
  query, key, value, weights, mask, _ = inputs("cross, padded", jnp.float32, heads=4, width=16)

  @jax.jit
  def run(*given):
    attend = lambda *arrays: interpreted(*arrays, *[None] * (3 - len(arrays)), mask, None, 0.3)  # noqa: E731
    out, pull_back = jax.vjp(attend, *given)
    return out, pull_back(weights)

  key, value = key[:, :, :2], value[:, :, :2]
  expected, gradients = run(query, key, value)
  got, found = run(query, jnp.stack([key, value], axis=2))
  np.testing.assert_array_equal(got, expected)
  jax.tree.map(np.testing.assert_array_equal, found, (gradients[0], jnp.stack(gradients[1:], axis=2)))


def by_definition(query, key, value, gradient, allowed, bias, scale):
  """Returns the output and gradients of softmax attention in float64; `bias` [heads, query, key]."""
  query, key, value, gradient = (np.asarray(x, np.float64) for x in (query, key, value, gradient))
  scores = np.where(allowed, scale * np.einsum("bqhd,bkhd->bhqk", query, key) + bias, -np.inf)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  d_weights = np.einsum("bqhd,bkhd->bhqk", gradient, value)
  d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
  return {
    "out": np.einsum("bhqk,bkhd->bqhd", weights, value),
    "d_query": scale * np.einsum("bhqk,bkhd->bqhd", d_scores, key),
    "d_key": scale * np.einsum("bhqk,bqhd->bkhd", d_scores, query),
    "d_value": np.einsum("bhqk,bqhd->bkhd", weights, gradient),
    "d_scores": d_scores.sum(0),
  }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["padded", "causal", "prefix"])
def test_short_rows_by_definition(case):
  """Two rows of two tiles; padded keys have zero gradients, in visited and in skipped tiles."""
  rng = np.random.default_rng(0)
  query_length, key_length = (40, 64) if case == "padded" else (64, 64)
  lengths = (query_length, key_length, key_length, query_length)
  query, key, value, gradient = (jnp.asarray(rng.normal(size=(2, n, 2, 16)), jnp.float32) for n in lengths)
  valid = np.arange(64)[None] < np.array([[20], [50]])
  at_query, at_key = np.arange(query_length)[:, None], np.arange(key_length)[None, :]
  table = jnp.asarray(rng.normal(size=(32, 2)), jnp.float32) if case == "prefix" else None
  if case == "padded":
    mask, allowed = Mask(key_valid=jnp.asarray(valid), right_padded=True), valid[:, None, None, :]
  else:
    inside = valid if case == "prefix" else np.zeros_like(valid)
    mask = Mask(causal=True, prefix=jnp.asarray(valid) if case == "prefix" else None)
    allowed = ((at_key <= at_query) | (inside[:, :, None] & inside[:, None, :]))[:, None]
  bias = 0.0
  if table is not None:
    buckets = np.asarray(relative_buckets(jnp.asarray(at_key - at_query), 32, 128, not mask.causal))
    bias = np.asarray(table)[buckets].transpose(2, 0, 1)
  expected = by_definition(query, key, value, gradient, allowed, bias, 0.3)
  d_scores = expected.pop("d_scores")
  if table is not None:
    expected["d_table"] = np.zeros((32, 2))
    np.add.at(expected["d_table"], buckets, d_scores.transpose(1, 2, 0))
  tile_sizes = TileSizes(*[Blocks(32, 32, 4, 2)] * 3)

  def run(query, key, value, table):
    def attend(query, key, value, table):
      bias = None if table is None else RelativeBias(table, bidirectional=not mask.causal)
      return gpu_attention(query, key, value, mask, bias, 0.3, tile_sizes=tile_sizes, interpret=True)

    out, vjp = jax.vjp(attend, query, key, value, table)
    return out, *vjp(gradient)

  names = ("out", "d_query", "d_key", "d_value", "d_table")
  got = dict(zip(names, jax.jit(run)(query, key, value, table), strict=True))
  assert max(relative_error(got[name], expected[name]) for name in expected) < 2e-6
  if case == "padded":
    for name in ("d_key", "d_value"):
      np.testing.assert_array_equal(np.asarray(got[name])[~valid], 0.0)


@pytest.mark.slow(reason="full-size tiles at the lengths of T5's span corruption")
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("query_length, key_length", [(512, 512), (114, 114), (114, 512)])
def test_lengths_of_span_corruption(query_length, key_length, width):
  """Encoder and decoder attention with a bias, cross-attention without; rows of different lengths."""
  rng = np.random.default_rng(0)
  query, key, value, weights = (
    jnp.asarray(rng.normal(size=(2, n, 1, width)), jnp.float32)
    for n in (query_length, key_length, key_length, query_length)
  )
  valid = jnp.asarray(np.arange(key_length)[None] < np.array([[key_length], [key_length // 3]]))
  mask = Mask(causal=key_length == 114, key_valid=valid, right_padded=True)
  table = None if query_length != key_length else jnp.asarray(rng.normal(size=(32, 1)), jnp.float32)
  given = query, key, value, weights, mask, table
  got = value_and_gradients(functools.partial(gpu_attention, tile_sizes=TILE_SIZES[width], interpret=True), *given)
  expected = value_and_gradients(xla_attention, *given)
  assert max(relative_error(got[key], expected[key]) for key in expected) < 2e-6


@pytest.mark.slow(reason="interpreting a kernel takes 10 s per case")
def test_bfloat16_differs_only_by_rounding():
  """The tolerance of tests/gpu/test_attention_on_gpu.py, also for the bias gradient, which is summed from bfloat16."""
  given = inputs("bias", jnp.bfloat16, heads=2, width=64)
  got = value_and_gradients(interpreted, *given)
  expected = value_and_gradients(xla_attention, *(x.astype(jnp.float32) for x in given[:4]), *given[4:])
  assert max(relative_error(got[key], expected[key]) for key in expected) < 0.012


def test_a_fully_masked_query_has_zero_output_and_gradients():
  rng = np.random.default_rng(0)
  query, key, value = (jnp.asarray(rng.normal(size=(1, 32, 1, 16)), jnp.float32) for _ in range(3))
  segments = jnp.asarray([[1] * 20 + [0] * 12], jnp.int32)
  mask = Mask(query_segments=segments, key_segments=segments, key_valid=segments > 0)
  tile_sizes = TileSizes(*[Blocks(32, 32, 4, 2)] * 3)
  out, vjp = jax.vjp(
    jax.jit(lambda *given: gpu_attention(*given, mask, None, 0.25, tile_sizes=tile_sizes, interpret=True)),
    query,
    key,
    value,
  )
  np.testing.assert_array_equal(out[0, 20:], 0.0)
  d_query, d_key, d_value = vjp(jnp.ones_like(out))
  for gradient in (d_query, d_key, d_value):
    np.testing.assert_array_equal(gradient[0, 20:], 0.0)
  np.testing.assert_allclose(jnp.sum(d_value), 20 * 16, rtol=1e-5)  # all weight is on unmasked keys


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("rows, columns", [(64, 64), (128, 64), (32, 64)])
def test_bias_tiles_are_those_of_the_matrix(bidirectional, rows, columns):
  rng = np.random.default_rng(0)
  bias = RelativeBias(jnp.asarray(rng.normal(size=(32, 2)), jnp.float32), bidirectional)
  buckets = tiles.BucketSpec.from_bias(bias)
  matrix = np.asarray(bias_matrix(bias, 512, 512))[0]
  by_query = np.asarray(tiles.bias_tiles(bias.table, buckets, rows, columns, 1, jnp.float32))
  by_key = np.asarray(tiles.bias_tiles(bias.table, buckets, columns, rows, -1, jnp.float32))
  for i in range(512 // rows):
    for j in range(512 // columns):
      tile = matrix[:, i * rows :, j * columns :][:, :rows, :columns] * np.log2(np.e)
      np.testing.assert_allclose(by_query[:, tiles.tile_index(buckets, rows, columns, i, j)], tile, rtol=1e-6)
      transposed = by_key[:, tiles.tile_index(buckets, columns, rows, j, i)]
      np.testing.assert_allclose(transposed, tile.swapaxes(1, 2), rtol=1e-6)
      if not tiles.is_near(buckets, rows, columns, tiles.tile_index(buckets, rows, columns, i, j)):
        assert np.ptp(tile, axis=(1, 2)).max() == 0.0  # the kernel adds one number


@pytest.mark.slow
@pytest.mark.parametrize("bidirectional", [True, False])
def test_score_gradients_are_summed_by_bucket(bidirectional):
  """By definition: every entry of [query, key] is added to the bucket of its distance."""
  rng = np.random.default_rng(0)
  table = jnp.zeros((32, 1))
  buckets = tiles.BucketSpec.from_bias(RelativeBias(table, bidirectional))
  rows, columns, length = 64, 32, 320
  d_scores = rng.normal(size=(length, length)).astype(np.float32)
  apart = jnp.asarray(tiles.distance_tiles(buckets, rows, columns))

  @jax.jit
  def add(total, tile, i, j):
    return tiles.add_by_distance(total, tile, apart[tiles.tile_index(buckets, rows, columns, i, j)])

  total = jnp.zeros((64, buckets.columns))
  for i in range(length // rows):
    for j in range(length // columns):
      total = add(total, d_scores[i * rows :, j * columns :][:rows, :columns], i, j)
  got = tiles.table_gradient(tiles.fold_groups(total)[None, None, None], table, buckets)
  distance = np.arange(length)[None, :] - np.arange(length)[:, None]
  expected = np.zeros(32)
  np.add.at(expected, np.asarray(relative_buckets(jnp.asarray(distance), 32, 128, bidirectional)), d_scores)
  np.testing.assert_allclose(got[:, 0], expected, atol=2e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("causal", [False, True])
def test_skipped_tiles_hide_nothing(causal):
  """Every visible pair is in a visited tile, by query and by key; rows with one example skip no tiles."""
  rng = np.random.default_rng(0)
  segments = np.sort(rng.integers(1, 6, (3, 192)), axis=1)
  segments[0], segments[1, 150:], segments[2] = 1, 0, rng.integers(0, 3, 192)  # the last row is unordered
  mask = Mask(causal, None, jnp.asarray(segments), jnp.asarray(segments), jnp.asarray(segments > 0))
  blocks, spec = Blocks(64, 32, 4, 2), KernelSpec(192, 192, causal, False, None, 1, 1.0, None, False, 0.0, True)
  codes, lengths = masks.encode_mask(mask, 3, 192, 192)
  assert lengths is None
  seen = np.broadcast_to(np.asarray(mask_matrix(mask, 192, 192)), (3, 1, 192, 192))[:, 0]
  needed = seen.reshape(3, 3, 64, 6, 32).any(axis=(2, 4))
  for by_key in (False, True):
    operands, _ = masks.mask_operands(codes, None, spec, blocks, by_key)
    first, count = np.moveaxis(np.asarray(operands[2]).reshape(3, -1, 2), 2, 0)
    other = np.arange(3 if by_key else 6)
    visited = (other >= first[..., None]) & (other < (first + count)[..., None])
    required = needed.swapaxes(1, 2) if by_key else needed
    assert not np.any(required & ~visited)
    if not causal:
      assert visited[0].all()
    assert visited[1].sum() <= required[1].sum() + 2  # with sorted segments, hardly any tile is visited needlessly


@pytest.mark.slow
def test_every_kernel_lowers_for_gpus():
  """To Triton's IR, without a GPU."""
  shape = jax.ShapeDtypeStruct((2, 512, 2, 64), jnp.bfloat16)
  table = jax.ShapeDtypeStruct((32, 2), jnp.float32)
  segments = jax.ShapeDtypeStruct((2, 512), jnp.int32)

  def loss(query, key, value, table, segments):
    packed = Mask(query_segments=segments, key_segments=segments, key_valid=segments > 0)
    padded = Mask(key_valid=segments > 0, right_padded=True)
    out = gpu_attention(query, key, value, packed, RelativeBias(table), 1.0)
    out = out + gpu_attention(query, key, value, padded, RelativeBias(table), 1.0)
    out = out + gpu_attention(query, key, value, Mask(causal=True), None, 1.0)
    return jnp.sum(out.astype(jnp.float32))

  gpu = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
  with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=gpu)):
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).trace(shape, shape, shape, table, segments)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert text.count("xla.gpu.triton") == 9
