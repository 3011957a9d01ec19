"""The gradient of T5's bias on a GPU: each [query, key] tile is summed over the batch in registers.

The kernel recomputes the attention weights of a tile from the saved softmax normalizers, which costs a third of a
backward pass; accumulating one matrix per row in memory would move `batch` times as many bytes.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.attention.masks import Codes, visible
from t5like.kernels.attention.residuals import kv_head

BLOCK_QUERY, BLOCK_KEY = 64, 64
WARPS, STAGES = 4, 3
_PROGRAMS = 800  # several waves on every multiprocessor of a large GPU


def bias_gradient(
  query: jax.Array,  # [batch, query, heads, kv], as key, value, the output and its gradient
  key: jax.Array,
  value: jax.Array,
  out: jax.Array,
  gradient: jax.Array,
  log_sums: jax.Array,  # [batch, heads, query] float32
  by_distance: jax.Array,  # [heads, query + key] float32
  codes: Codes | None,
  lengths: jax.Array | None = None,  # [batch]: keys per row, instead of codes
  *,
  causal: bool,
  scale: float,
  window: int | None = None,
  interpret: bool = False,
) -> jax.Array:
  """Returns the gradient of the scores summed over the batch, [heads, query, key] float32."""
  batch, query_length, heads, _ = query.shape
  key_length = key.shape[1]
  delta = jnp.einsum("bqhd,bqhd->bhq", out.astype(jnp.float32), gradient.astype(jnp.float32))
  tiles = pl.cdiv(query_length, BLOCK_QUERY), pl.cdiv(key_length, BLOCK_KEY)
  groups = _divisor(batch, _PROGRAMS // (heads * tiles[0] * tiles[1]))
  operands = [query, key, value, gradient, log_sums, delta, by_distance]
  operands += [codes.query, codes.key] if codes is not None else []
  operands += [lengths] if lengths is not None else []
  full_specs = [pl.BlockSpec(x.shape, functools.partial(_origin, x.ndim)) for x in operands]
  parts = pl.pallas_call(
    functools.partial(
      _tile,
      rows=batch // groups,
      causal=causal,
      scale=scale,
      window=window,
      coded=codes is not None,
      has_lengths=lengths is not None,
    ),
    out_shape=jax.ShapeDtypeStruct((groups, heads, query_length, key_length), jnp.float32),
    grid=(groups * heads, *tiles),
    in_specs=full_specs,
    out_specs=pl.BlockSpec((groups, heads, query_length, key_length), functools.partial(_origin, 4)),
    compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
    interpret=interpret,
    name="t5_bias_gradient",
  )(*operands)
  return jnp.sum(parts, axis=0)


def _origin(ndim, *_):
  return (0,) * ndim


def _divisor(number: int, at_most: int) -> int:
  """Returns the largest divisor of `number` not greater than `at_most`; at least 1."""
  return max(d for d in range(1, max(at_most, 1) + 1) if number % d == 0)


def _tile(
  query_ref, key_ref, value_ref, gradient_ref, log_sums_ref, delta_ref, by_distance_ref, *refs,
  rows, causal, scale, window, coded, has_lengths,
):  # fmt: skip
  *mask_refs, out_ref = refs
  _, query_length, heads, width = query_ref.shape
  key_length = key_ref.shape[1]
  group, head = pl.program_id(0) // heads, pl.program_id(0) % heads
  at_query = pl.program_id(1) * BLOCK_QUERY + jnp.arange(BLOCK_QUERY)
  at_key = pl.program_id(2) * BLOCK_KEY + jnp.arange(BLOCK_KEY)
  at_kv = jnp.arange(pl.next_power_of_2(width))
  in_query, in_key = at_query < query_length, at_key < key_length
  inside = in_query[:, None] & in_key[None, :]
  load_query = in_query[:, None] & (at_kv < width)[None, :]
  load_key = in_key[:, None] & (at_kv < width)[None, :]
  distance = at_key[None, :] - at_query[:, None] + query_length
  bias = triton.load(by_distance_ref.at[head, distance], mask=inside, other=0.0)  # [query, key]

  def add_row(i, total):
    row = group * rows + i

    def tokens(ref, at, mask):
      own = kv_head(head, heads // ref.shape[2])
      return triton.load(ref.at[row, at[:, None], own, at_kv[None, :]], mask=mask, other=0.0)

    q, k = tokens(query_ref, at_query, load_query), tokens(key_ref, at_key, load_key)
    do, v = tokens(gradient_ref, at_query, load_query), tokens(value_ref, at_key, load_key)
    log_sum = triton.load(log_sums_ref.at[row, head, at_query], mask=in_query, other=0.0)
    delta = triton.load(delta_ref.at[row, head, at_query], mask=in_query, other=0.0)
    scores = scale * triton.dot(q, k.T) + bias
    allowed = inside
    query_code = key_code = None
    if coded:
      query_code = triton.load(mask_refs[0].at[row, at_query], mask=in_query, other=0)[:, None]
      key_code = triton.load(mask_refs[1].at[row, at_key], mask=in_key, other=-2)[None, :]
    seen = visible(at_query[:, None], at_key[None, :], query_code, key_code, causal, window)
    if seen is not None:
      allowed = allowed & seen
    if has_lengths:
      allowed = allowed & (at_key < triton.load(mask_refs[-1].at[row]))[None, :]
    weights = jnp.where(allowed, jnp.exp(scores - log_sum[:, None]), 0.0)
    return total + weights * (triton.dot(do, v.T) - delta[:, None])

  total = jax.lax.fori_loop(0, rows, add_row, jnp.zeros((BLOCK_QUERY, BLOCK_KEY), jnp.float32))
  triton.store(out_ref.at[group, head, at_query[:, None], at_key[None, :]], total, mask=inside)
