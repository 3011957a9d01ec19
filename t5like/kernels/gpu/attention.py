"""Fused attention for NVIDIA GPUs (Pallas, Triton): scores stay in registers and T5's bias is computed in the kernel.

Follows FlashAttention-2 (Dao 2023). Unlike cuDNN, it reads the bias from a few tiles that depend only on `key - query`
(bias_tiles.py), returns the gradient of its table as 16 x 32 sums per block of queries, and skips tiles masked by
packing or row lengths. Arrays are [batch, length, heads, kv], as in the model; queries, keys and values may also be one
array [batch, length, 3, heads, kv], or keys and values one of 2, as one matrix product writes them, and so are their
gradients then.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.attention.masks import Mask
from t5like.kernels.attention.relative_bias import Alibi, RelativeBias
from t5like.kernels.attention.residuals import name_residuals
from t5like.kernels.dropout import AttentionDropout
from t5like.kernels.gpu.bias_tiles import BucketSpec, table_gradient
from t5like.kernels.gpu.gradient import key_gradient, query_gradient
from t5like.kernels.gpu.masks import KernelMask, encode_mask, mask_operands
from t5like.kernels.gpu.tiles import Blocks, KernelSpec, TileDropout, load_rows, scores, softmax_weights, store_rows


@dataclasses.dataclass(frozen=True)
class TileSizes:
  """Tile sizes of the three kernels."""

  forward: Blocks
  query_gradient: Blocks
  key_gradient: Blocks


# By head_dim. For 64: the fastest of 86 on an H200 at 128 x 512 tokens and 12 heads. For 128: not tuned; compiled
# for an H100, no register is spilled and matrix products overlap.
_SHORT = 128  # up to this number of queries and keys, there is nothing to prefetch
_LONG = 1024  # from this number of queries, a taller tile of the queries' gradient is faster (2,048 tokens: by 15%)
TILE_SIZES = {
  64: TileSizes(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2, branch_only_loads=True), Blocks(64, 64, 4, 3)),
  128: TileSizes(Blocks(128, 64, 8, 2), Blocks(128, 64, 8, 2), Blocks(64, 128, 8, 2)),
}


def gpu_attention(
  query: jax.Array, key: jax.Array | None, value: jax.Array | None, mask: Mask, bias: RelativeBias | Alibi | None,
  scale: float, dropout: AttentionDropout | None = None, tile_sizes: TileSizes | None = None, interpret: bool = False,
) -> jax.Array:  # fmt: skip
  """Computes attention; query, key, value [batch, length, heads, kv], kv a power of 2 from 16 to 128; any lengths.

  Keys and values may have fewer heads: each program reads those of its head's group. The output for a query that
  attends to no key is zero. Without `value`, `key` [batch, length, 2, kv_heads, kv] holds both; without both, `query`
  [batch, length, 3, heads, kv] holds all.
  """
  batch, query_length = query.shape[:2]
  key_length, group = (query_length, 1) if key is None else (key.shape[1], query.shape[-2] // key.shape[-2])
  learned, alibi = isinstance(bias, RelativeBias), isinstance(bias, Alibi)
  spec = KernelSpec(
    query_length, key_length, mask.causal, mask.causal and mask.prefix is not None, mask.window,
    group, scale, BucketSpec.from_bias(bias) if learned else None, alibi,
    0.0 if dropout is None else dropout.rate, interpret,
  )  # fmt: skip
  table = bias.table if learned else bias.slopes if alibi else None
  tile_sizes = tile_sizes or _tile_sizes(query.shape[-1], query_length, key_length)
  bits = () if dropout is None else dropout.bits(query_length, key_length)
  masks = encode_mask(mask, batch, query_length, key_length)
  return _attend(query, key, value, table, masks, bits, spec, tile_sizes)


def _tile_sizes(head_dim: int, query_length: int, key_length: int) -> TileSizes:
  sizes = TILE_SIZES[64 if head_dim <= 64 else 128]
  if max(query_length, key_length) <= _SHORT:
    return TileSizes(*(dataclasses.replace(getattr(sizes, x.name), stages=1) for x in dataclasses.fields(sizes)))
  if head_dim <= 64 and query_length >= _LONG:
    return dataclasses.replace(sizes, query_gradient=Blocks(128, 64, 4, 2))
  return sizes


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _attend(query, key, value, table, masks, bits, spec: KernelSpec, tile_sizes: TileSizes):
  return _forward(query, key, value, table, masks, bits, spec, tile_sizes)[0]


def _forward(query, key, value, table, masks, bits, spec: KernelSpec, tile_sizes: TileSizes):
  out, log_sums = name_residuals(*_attention(query, key, value, table, masks, bits, spec, tile_sizes.forward))
  return out, (query, key, value, table, masks, bits, out, log_sums)


@functools.partial(jax.jit, static_argnames=("spec", "blocks"))  # so that all layers share one traced kernel
def _attention(query, key, value, table, masks, bits, spec: KernelSpec, blocks: Blocks):
  """Returns the result and the logarithm of each query's softmax normalizer."""
  batch, query_length, *_, heads, width = query.shape
  tiles, tile_specs = spec.bias_operands(table, blocks, query.dtype)
  mask, mask_specs = mask_operands(*masks, spec, blocks)
  by_query, by_row = spec.specs(width)
  projections, projection_specs = spec.projections(query, key, value)
  return pl.pallas_call(
    functools.partial(_forward_block, spec=spec, blocks=blocks),
    grid=(pl.cdiv(query_length, blocks.query), heads, batch),
    in_specs=[*projection_specs, tile_specs, mask_specs, spec.bits_specs],
    out_specs=[by_query, by_row],
    out_shape=[
      jax.ShapeDtypeStruct((batch, query_length, heads, width), query.dtype),
      jax.ShapeDtypeStruct((batch, heads, query_length), jnp.float32),
    ],
    compiler_params=blocks.compiler_params,
    interpret=spec.interpret,
    name="t5like_attention_forward",
  )(*projections, tiles, mask, list(bits))


def _forward_block(
  query_ref, key_ref, value_ref, tiles_refs, mask_refs, bits_refs, out_ref, log_sums_ref, *, spec: KernelSpec,
  blocks: Blocks,
):  # fmt: skip
  """Processes one block of queries of one row and head over the keys visible to it."""
  mask, tiles_ref = KernelMask.from_refs(mask_refs, spec, blocks), tiles_refs[0] if tiles_refs else None
  i = pl.program_id(0)
  at_query = i * blocks.query + jnp.arange(blocks.query)
  query, query_code = load_rows(query_ref, at_query, blocks), mask.query_codes(i)
  dropout = TileDropout(bits_refs, spec, blocks)
  query_bits = dropout.query_bits(at_query)

  def visit(j, carry, masked):
    mix, top, total = carry
    at_key = j * blocks.key + jnp.arange(blocks.key)
    s = scores(query, load_rows(key_ref, at_key, blocks), tiles_ref, i, j, spec, blocks)
    if masked:
      s = mask.hide(s, i, j, query_code, mask.key_codes(j))
    new_top = jnp.maximum(top, jnp.max(s, axis=1) * spec.log2_scale)
    base = jnp.where(new_top == -jnp.inf, 0.0, new_top)  # no visible key so far
    weights = softmax_weights(s, base[:, None], spec)
    shrink = jnp.exp2(top - base)
    value = load_rows(value_ref, at_key, blocks)
    dropped = dropout.drop(weights, query_bits, dropout.key_bits(at_key))
    mix = mix * shrink[:, None] + triton.dot(dropped.astype(value.dtype), value)
    return mix, new_top, total * shrink + jnp.sum(weights, axis=1)

  nothing = jnp.zeros((blocks.query,), jnp.float32)
  start = jnp.zeros((blocks.query, query_ref.shape[1]), jnp.float32), nothing - jnp.inf, nothing
  mix, top, total = mask.over_keys(i, visit, start)
  seen = total > 0.0
  store_rows(out_ref, at_query, mix * (spec.dropout_scale / jnp.where(seen, total, 1.0))[:, None])
  log_sum = jnp.where(seen, top + jnp.log2(jnp.where(seen, total, 1.0)), 0.0)
  triton.store(log_sums_ref.at[at_query], log_sum, mask=at_query < spec.query_length)


def _backward(spec: KernelSpec, tile_sizes: TileSizes, residuals, gradient):
  query, key, value, table, masks, bits, out, log_sums = residuals
  d_query, delta, sums = query_gradient(
    query, key, value, out, gradient, log_sums, table, masks, bits, spec, tile_sizes.query_gradient
  )
  gradients = key_gradient(
    query, key, value, gradient, log_sums, delta, d_query, table, masks, bits, spec, tile_sizes.key_gradient
  )
  d_table = None if spec.buckets is None else table_gradient(sums, table, spec.buckets)
  return *gradients, d_table, None, None


_attend.defvjp(_forward, _backward)
