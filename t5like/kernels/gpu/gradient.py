"""Backward pass of the GPU's fused attention: one kernel for queries and bias, one for keys and values.

Each recomputes the weights of its tiles from the saved softmax normalizers. Two kernels need seven products instead of
five, but no atomic additions, so results are deterministic.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.attention.residuals import sum_groups
from t5like.kernels.gpu.bias_tiles import GROUP, add_by_distance, distance_tiles, fold_groups
from t5like.kernels.gpu.masks import KernelMask, mask_operands
from t5like.kernels.gpu.tiles import (
  Blocks,
  KernelSpec,
  TileDropout,
  load_rows,
  load_tile,
  load_vector,
  scores,
  softmax_weights,
  store_rows,
)


@functools.partial(jax.jit, static_argnames=("spec", "blocks"))  # so that all layers share one traced kernel
def query_gradient(query, key, value, out, gradient, log_sums, table, masks, bits, spec: KernelSpec, blocks: Blocks):
  """Returns the gradient of the queries, delta and the score gradients summed by distance.

  delta [batch, heads, query] is the sum of `out * gradient`. The last result is per block of queries; None without a
  bias. If `query` holds keys and values, too, their parts of its gradient are left to `key_gradient`.
  """
  batch, query_length, *_, heads, width = query.shape
  count = pl.cdiv(query_length, blocks.query)
  tiles, tile_specs = spec.bias_operands(table, blocks, query.dtype)
  mask, mask_specs = mask_operands(*masks, spec, blocks)
  by_query, by_row = spec.specs(width)
  projections, projection_specs = spec.projections(query, key, value)
  out_specs = [projection_specs[0], by_row, []]
  out_shape = [
    jax.ShapeDtypeStruct(query.shape, query.dtype),
    jax.ShapeDtypeStruct((batch, heads, query_length), jnp.float32),
    [],
  ]
  if spec.buckets is not None:
    tiles.append(jnp.asarray(distance_tiles(spec.buckets, blocks.query, blocks.key), query.dtype))
    tile_specs.append(pl.BlockSpec(tiles[-1].shape, lambda i, h, b: (0, 0, 0)))
    folded = 2 * GROUP, spec.buckets.columns
    out_specs[2] = [pl.BlockSpec((None, None, None, *folded), lambda i, h, b: (b, h, i, 0, 0))]
    out_shape[2] = [jax.ShapeDtypeStruct((batch, heads, count, *folded), jnp.float32)]
  d_query, delta, sums = pl.pallas_call(
    functools.partial(_query_block, spec=spec, blocks=blocks),
    grid=(count, heads, batch),
    in_specs=[*projection_specs, by_query, by_query, by_row, tile_specs, mask_specs, spec.bits_specs],
    out_specs=out_specs,
    out_shape=out_shape,
    compiler_params=blocks.compiler_params,
    interpret=spec.interpret,
    name="t5like_attention_query_gradient",
  )(*projections, out, gradient, log_sums, tiles, mask, list(bits))
  return d_query, delta, sums[0] if sums else None


def _query_block(
  query_ref, key_ref, value_ref, out_ref, gradient_ref, log_sums_ref, tiles_refs, mask_refs, bits_refs, d_query_ref,
  delta_ref, sums_refs, *, spec: KernelSpec, blocks: Blocks,
):  # fmt: skip
  mask = KernelMask.from_refs(mask_refs, spec, blocks)
  tiles_ref, apart_ref = (*tiles_refs, None, None)[:2]
  i = pl.program_id(0)
  at_query = i * blocks.query + jnp.arange(blocks.query)
  query, gradient = load_rows(query_ref, at_query, blocks), load_rows(gradient_ref, at_query, blocks)
  # Infinite beyond the end, so that weights are zero there.
  log_sum = load_vector(log_sums_ref, at_query, jnp.inf, blocks)
  out = load_rows(out_ref, at_query, blocks)
  delta = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), axis=1)
  triton.store(delta_ref.at[at_query], delta, mask=at_query < spec.query_length)
  query_code = mask.query_codes(i)
  dropout = TileDropout(bits_refs, spec, blocks)
  query_bits = dropout.query_bits(at_query)

  def visit(j, carry, masked):
    d_query, *sums = carry
    at_key = j * blocks.key + jnp.arange(blocks.key)
    key, value = load_rows(key_ref, at_key, blocks), load_rows(value_ref, at_key, blocks)
    s = scores(query, key, tiles_ref, i, j, spec, blocks)
    if masked:
      s = mask.hide(s, i, j, query_code, mask.key_codes(j))
    weights = softmax_weights(s, log_sum[:, None], spec)
    d_weights = dropout.drop(triton.dot(gradient, value.T), query_bits, dropout.key_bits(at_key))
    d_scores = (weights * (d_weights * spec.dropout_scale - delta[:, None])).astype(key.dtype)
    if sums:
      sums = [add_by_distance(*sums, d_scores, load_tile(apart_ref, spec.buckets, s.shape, i, j))]
    return d_query + triton.dot(d_scores, key), *sums

  start = [jnp.zeros(query.shape, jnp.float32)]
  if sums_refs:
    start.append(jnp.zeros((GROUP * GROUP, spec.buckets.columns), jnp.float32))
  d_query, *sums = mask.over_keys(i, visit, tuple(start))
  store_rows(d_query_ref, at_query, d_query * spec.scale)
  for ref, total in zip(sums_refs, sums, strict=True):
    ref[...] = fold_groups(total)


@functools.partial(jax.jit, static_argnames=("spec", "blocks"))
def key_gradient(
  query, key, value, gradient, log_sums, delta, d_query, table, masks, bits, spec: KernelSpec, blocks: Blocks
):
  """Returns the gradients of queries, which are given, keys and values.

  Those of keys are computed for every head of queries, and summed up for a group. If one array holds keys and values,
  so does its gradient; if that is `query`, they are written to their parts of `d_query`.
  """
  batch, *_, heads, width = query.shape
  tiles, tile_specs = spec.bias_operands(table, blocks, query.dtype, by_key=True)
  mask, mask_specs = mask_operands(*masks, spec, blocks, by_key=True)
  by_query, by_row = spec.specs(width)
  projections, projection_specs = spec.projections(query, key, value)
  written = [d_query] if key is None else []
  if value is None:
    parts = (query if key is None else key).shape[2]
    out_specs = [pl.BlockSpec((None, spec.key_length, parts, None, width), lambda i, h, b: (b, 0, 0, h, 0))]
    out_shape = [jax.ShapeDtypeStruct((batch, spec.key_length, parts, heads, width), query.dtype)]
  else:
    out_specs = [pl.BlockSpec((None, spec.key_length, None, width), lambda i, h, b: (b, 0, h, 0))] * 2
    out_shape = [jax.ShapeDtypeStruct((batch, spec.key_length, heads, width), x.dtype) for x in (key, value)]
  gradients = pl.pallas_call(
    functools.partial(_key_block, spec=spec, blocks=blocks),
    grid=(pl.cdiv(spec.key_length, blocks.key), heads, batch),
    in_specs=[
      out_specs[: len(written)],
      *projection_specs,
      by_query,
      by_row,
      by_row,
      tile_specs,
      mask_specs,
      spec.bits_specs,
    ],
    out_specs=out_specs,
    out_shape=out_shape,
    input_output_aliases={0: 0} if written else {},
    compiler_params=blocks.compiler_params,
    interpret=spec.interpret,
    name="t5like_attention_key_gradient",
  )(written, *projections, gradient, log_sums, delta, tiles, mask, list(bits))
  if spec.group > 1:
    gradients = [sum_groups(x, x.ndim - 2, spec.group) for x in gradients]
  gradients = gradients if key is None else [d_query, *gradients]
  return *gradients, *[None] * (3 - len(gradients))


def _key_block(
  _, query_ref, key_ref, value_ref, gradient_ref, log_sums_ref, delta_ref, tiles_refs, mask_refs, bits_refs,
  *gradient_refs, spec: KernelSpec, blocks: Blocks,
):  # fmt: skip
  """Processes one block of keys, in [key, query] tiles so that weights enter their products without a transpose."""
  mask, tiles_ref = KernelMask.from_refs(mask_refs, spec, blocks), tiles_refs[0] if tiles_refs else None
  j = pl.program_id(0)
  at_key = j * blocks.key + jnp.arange(blocks.key)
  key, value = load_rows(key_ref, at_key, blocks), load_rows(value_ref, at_key, blocks)
  key_code = mask.key_codes(j)
  dropout = TileDropout(bits_refs, spec, blocks)
  key_bits = dropout.key_bits(at_key)

  def visit(i, carry, masked):
    d_key, d_value = carry
    at_query = i * blocks.query + jnp.arange(blocks.query)
    query, gradient = load_rows(query_ref, at_query, blocks), load_rows(gradient_ref, at_query, blocks)
    log_sum = load_vector(log_sums_ref, at_query, jnp.inf, blocks)
    delta = load_vector(delta_ref, at_query, 0.0, blocks)
    s = scores(query, key, tiles_ref, i, j, spec, blocks, by_key=True)
    if masked:
      s = mask.hide(s, i, j, mask.query_codes(i), key_code, by_key=True)
    weights = softmax_weights(s, log_sum[None, :], spec)
    bits = key_bits, dropout.query_bits(at_query)
    d_value = d_value + triton.dot(dropout.drop(weights, *bits).astype(gradient.dtype), gradient)
    d_weights = dropout.drop(triton.dot(value, gradient.T), *bits)
    d_scores = weights * (d_weights * spec.dropout_scale - delta[None, :])
    return d_key + triton.dot(d_scores.astype(query.dtype), query), d_value

  zeros = jnp.zeros(key.shape, jnp.float32)
  d_key, d_value = mask.over_queries(j, visit, (zeros, zeros))
  if len(gradient_refs) == 2:
    places = [(ref, None) for ref in gradient_refs]
  else:  # the last two parts of one array
    parts = gradient_refs[0].shape[1]
    places = [(*gradient_refs, parts - 2), (*gradient_refs, parts - 1)]
  for (ref, part), rows in zip(places, (d_key * spec.scale, d_value * spec.dropout_scale), strict=True):
    store_rows(ref, at_key, mask.zero_beyond_length(at_key, rows), part)
