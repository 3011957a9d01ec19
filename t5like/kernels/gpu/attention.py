"""Fused attention for NVIDIA GPUs (Pallas, Triton): scores live in registers and T5's bias is made inside.

As FlashAttention-2 (Dao 2023). What cuDNN cannot do: the bias comes from a few tiles that depend on `key - query`
alone (gpu_bias_tiles), its table's gradient leaves the backward pass as 16 x 32 sums a block of queries, and tiles that
no packed example or row's length needs are skipped. Arrays are [batch, length, heads, kv] as the model has them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.attention.keeping import kept_results
from t5like.kernels.attention.masks import Mask
from t5like.kernels.attention.relative_bias import RelativeBias
from t5like.kernels.gpu.bias_tiles import Reach, table_gradient
from t5like.kernels.gpu.gradient import key_gradient, query_gradient
from t5like.kernels.gpu.masks import Sight, mask_operands, sight_operands
from t5like.kernels.gpu.tiles import Blocks, TileWork, load_rows, scores, store_rows, weights_of


@dataclasses.dataclass(frozen=True)
class Plan:
  """Tile sizes of the three kernels."""

  forward: Blocks
  query_gradient: Blocks
  key_gradient: Blocks


# By the width of a head. Those for 64 were the fastest of 86 on an H200 at 128 x 512 tokens and 12 heads; those for 128
# are not tried out: as compiled for an H100, no register is spilled and matrix products overlap.
PLANS = {
  64: Plan(Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 3)),
  128: Plan(Blocks(128, 64, 8, 2), Blocks(128, 64, 8, 2), Blocks(64, 128, 8, 2)),
}


def gpu_attention(
  query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, bias: RelativeBias | None, scale: float,
  plan: Plan | None = None, interpret: bool = False,
) -> jax.Array:  # fmt: skip
  """query, key, value [batch, length, heads, kv], kv a power of 2 from 16 to 128; any lengths.

  A query that may look at no key gets zeros.
  """
  batch, query_length = query.shape[:2]
  key_length = key.shape[1]
  work = TileWork(
    query_length, key_length, mask.causal, mask.causal and mask.prefix is not None, scale,
    None if bias is None else Reach.of(bias), interpret,
  )  # fmt: skip
  table = None if bias is None else bias.table
  plan = plan or PLANS[64 if query.shape[3] <= 64 else 128]
  return _attend(query, key, value, table, mask_operands(mask, batch, query_length, key_length), work, plan)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(query, key, value, table, masks, work: TileWork, plan: Plan):
  return _forward(query, key, value, table, masks, work, plan)[0]


def _forward(query, key, value, table, masks, work: TileWork, plan: Plan):
  out, log_sums = kept_results(*_attention(query, key, value, table, masks, work, plan.forward))
  return out, (query, key, value, table, masks, out, log_sums)


@functools.partial(jax.jit, static_argnames=("work", "blocks"))  # so that all layers share one traced kernel
def _attention(query, key, value, table, masks, work: TileWork, blocks: Blocks):
  """The result, and the logarithm of each row's sum of weights."""
  batch, query_length, heads, width = query.shape
  tiles, tile_specs = work.bias_operands(table, blocks, query.dtype)
  sight, sight_specs = sight_operands(*masks, work, blocks)
  by_query, by_key, by_row = work.specs(width)
  return pl.pallas_call(
    functools.partial(_forward_block, work=work, blocks=blocks),
    grid=(pl.cdiv(query_length, blocks.query), heads, batch),
    in_specs=[by_query, by_key, by_key, tile_specs, sight_specs],
    out_specs=[by_query, by_row],
    out_shape=[
      jax.ShapeDtypeStruct(query.shape, query.dtype),
      jax.ShapeDtypeStruct((batch, heads, query_length), jnp.float32),
    ],
    compiler_params=blocks.compiler_params,
    interpret=work.interpret,
    name="t5like_attention_forward",
  )(query, key, value, tiles, sight)


def _forward_block(
  query_ref, key_ref, value_ref, tiles_refs, sight_refs, out_ref, log_sums_ref, *, work: TileWork, blocks: Blocks
):
  """One block of queries of a row and a head, over the keys it may see."""
  sight, tiles_ref = Sight.of(sight_refs, work, blocks), tiles_refs[0] if tiles_refs else None
  i = pl.program_id(0)
  at_query = i * blocks.query + jnp.arange(blocks.query)
  query, query_code = load_rows(query_ref, at_query, blocks), sight.query_codes(i)

  def visit(j, carry, masked):
    mix, top, total = carry
    at_key = j * blocks.key + jnp.arange(blocks.key)
    s = scores(query, load_rows(key_ref, at_key, blocks), tiles_ref, i, j, work)
    if masked:
      s = sight.hide(s, i, j, query_code, sight.key_codes(j))
    new_top = jnp.maximum(top, jnp.max(s, axis=1) * work.unit)
    base = jnp.where(new_top == -jnp.inf, 0.0, new_top)  # a row that has seen nothing yet
    weights = weights_of(s, base[:, None], work)
    shrink = jnp.exp2(top - base)
    value = load_rows(value_ref, at_key, blocks)
    mix = mix * shrink[:, None] + triton.dot(weights.astype(value.dtype), value)
    return mix, new_top, total * shrink + jnp.sum(weights, axis=1)

  nothing = jnp.zeros((blocks.query,), jnp.float32)
  start = jnp.zeros((blocks.query, query_ref.shape[1]), jnp.float32), nothing - jnp.inf, nothing
  mix, top, total = sight.over_keys(i, visit, start)
  seen = total > 0.0
  store_rows(out_ref, at_query, mix / jnp.where(seen, total, 1.0)[:, None])
  log_sum = jnp.where(seen, top + jnp.log2(jnp.where(seen, total, 1.0)), 0.0)
  triton.store(log_sums_ref.at[at_query], log_sum, mask=at_query < work.query_length)


def _backward(work: TileWork, plan: Plan, kept, gradient):
  query, key, value, table, masks, out, log_sums = kept
  d_query, delta, sums = query_gradient(
    query, key, value, out, gradient, log_sums, table, masks, work, plan.query_gradient
  )
  d_key, d_value = key_gradient(query, key, value, gradient, log_sums, delta, table, masks, work, plan.key_gradient)
  d_table = None if table is None else table_gradient(sums, table, work.reach)
  return d_query, d_key, d_value, d_table, None


_attend.defvjp(_forward, _backward)
