"""Unfused attention: supports every device and mask, dropout and cached decoding; memory grows with query x key.

On a CPU, long rows are processed one head and one block of queries at a time. Scores then stay in the processor's
cache, which is three times as fast at 8,192 tokens, and memory grows only with the keys.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5like.kernels.attention.disentangled import Disentangled, disentangled_scores
from t5like.kernels.attention.masks import Mask, mask_matrix
from t5like.kernels.attention.relative_bias import Alibi, RelativeBias, bias_by_distance, bias_matrix, skew
from t5like.kernels.attention.synthesized import Synthesized
from t5like.kernels.attention.transformer_xl import RelativeTerms, relative_scores
from t5like.kernels.dropout import AttentionDropout
from t5like.kernels.platform import target_platform
from t5like.kernels.products import product

# Replaces masked scores. Finite, so that a fully masked row (padding) yields an
# average instead of NaN.
_MASKED = -1e30
_MIN_BLOCKED_SCORES = 2048 * 2048  # per head
_BLOCK = 512  # queries


def xla_attention(
  query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, bias: RelativeBias | Alibi | None, scale: float,
  dropout: AttentionDropout | None = None, query_offset: jax.Array | None = None, prefix: jax.Array | None = None,
  relative: Disentangled | RelativeTerms | Synthesized | None = None,
) -> jax.Array:  # fmt: skip
  """Computes attention; arguments as in `attention`."""
  lengths = query.shape[1], key.shape[1]
  if _is_long(*lengths) and all(x is None for x in (dropout, query_offset, mask.prefix, prefix, relative)):
    return _in_blocks(query, key, value, mask, bias, scale)
  weights = attention_weights(query, key, mask, bias, scale, query_offset, prefix, relative).astype(value.dtype)
  learned = 0 if prefix is None else prefix.shape[1]
  if dropout is not None:
    keep = dropout.keep(lengths[0], learned + lengths[1])
    weights = jnp.where(keep, weights / (1.0 - dropout.rate), 0.0)
  y = _mixed("bkhd", weights[..., learned:], value)
  return y if not learned else y + _mixed("khd", weights[..., :learned], prefix[1].astype(value.dtype))


def attention_weights(
  query: jax.Array, key: jax.Array, mask: Mask, bias: RelativeBias | Alibi | None, scale: float,
  query_offset: jax.Array | None = None, prefix: jax.Array | None = None,
  relative: Disentangled | RelativeTerms | Synthesized | None = None,
) -> jax.Array:  # fmt: skip
  """Returns the softmax of scores, [batch, heads, query, key] float32; the keys of a prefix come first."""
  lengths = query.shape[1], key.shape[1]
  replaced = isinstance(relative, Synthesized) and relative.replaces
  scores = None if replaced else scale * _scores("bkhd", query, key)
  if isinstance(relative, Synthesized):
    scores = relative.mixed(scores, jnp.broadcast_to(relative.scores, (len(query), *relative.scores.shape[1:])))
  elif isinstance(relative, Disentangled):
    scores = scores + scale * disentangled_scores(query, key, relative)
  elif relative is not None:
    scores = scores + scale * relative_scores(relative)
  if bias is not None:
    scores = scores + bias_matrix(bias, *lengths, query_offset)
  allowed = mask_matrix(mask, *lengths, query_offset)
  if allowed is not None:
    scores = jnp.where(allowed, scores, _MASKED)
  if prefix is not None:
    ahead = scale * _scores("khd", query, prefix[0].astype(query.dtype))
    scores = jnp.concatenate([ahead, scores], axis=-1)
  return jax.nn.softmax(scores, axis=-1)


def _scores(axes: str, query: jax.Array, key: jax.Array) -> jax.Array:
  """Returns scores [batch, heads, query, key]; axes of keys are named. A group of queries reads one head of keys."""
  batch, length, heads, width = query.shape
  if key.shape[-2] == heads:
    return product(f"bqhd,{axes}->bhqk", query, key, jnp.float32)
  grouped = query.reshape(batch, length, key.shape[-2], -1, width)
  return product(f"bqhgd,{axes}->bhgqk", grouped, key, jnp.float32).reshape(batch, heads, length, -1)


def _mixed(axes: str, weights: jax.Array, value: jax.Array) -> jax.Array:
  """Returns weights [batch, heads, query, key] times values, whose axes are named: [batch, query, heads, kv]."""
  batch, heads, length, keys = weights.shape
  if value.shape[-2] == heads:
    return jnp.einsum(f"bhqk,{axes}->bqhd", weights, value)
  grouped = weights.reshape(batch, value.shape[-2], -1, length, keys)
  return jnp.einsum(f"bhgqk,{axes}->bqhgd", grouped, value).reshape(batch, length, heads, -1)


def _is_long(query_length: int, key_length: int) -> bool:
  """Whether to process rows in blocks; only on a single CPU, because the loop over heads cannot be partitioned."""
  if target_platform() != "cpu" or jax.sharding.get_abstract_mesh().size > 1:
    return False
  return query_length * key_length >= _MIN_BLOCKED_SCORES


def _in_blocks(query, key, value, mask: Mask, bias: RelativeBias | Alibi | None, scale: float) -> jax.Array:
  batch, query_length, heads, width = query.shape
  key_length, group = key.shape[1], heads // key.shape[2]
  blocks = -(-query_length // _BLOCK)
  padding = blocks * _BLOCK - query_length
  mask = jax.tree.map(jnp.asarray, mask)  # a model is initialized with NumPy's arrays

  def to_blocks(x: jax.Array) -> jax.Array:  # [batch, query, ...] -> [batch, blocks, block, ...]
    x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
    return x.reshape(batch, blocks, _BLOCK, *x.shape[2:])

  queries = to_blocks(query)
  segments = None if mask.query_segments is None else to_blocks(mask.query_segments)
  by_distance = None if bias is None else bias_by_distance(bias, blocks * _BLOCK, key_length)

  def one_head(number: jax.Array) -> jax.Array:  # [blocks, block, kv]
    row, head = number // heads, number % heads
    keys, values = key[row, :, head // group], value[row, :, head // group]  # [key, kv]
    row_mask = jax.tree.map(lambda x: x[row][None], dataclasses.replace(mask, query_segments=None))

    @jax.checkpoint
    def one_block(block: jax.Array) -> jax.Array:  # [block, kv]
      scores = scale * product("qd,kd->qk", queries[row, block, :, head], keys, jnp.float32)
      if bias is not None:
        start = (blocks - 1 - block) * _BLOCK
        window = jax.lax.dynamic_slice_in_dim(by_distance[head], start, _BLOCK + key_length)
        scores = scores + skew(window[None], _BLOCK, key_length)[0]
      block_mask = row_mask
      if segments is not None:
        block_mask = dataclasses.replace(row_mask, query_segments=segments[row, block][None])
      allowed = mask_matrix(block_mask, _BLOCK, key_length, block[None] * _BLOCK)
      if allowed is not None:
        scores = jnp.where(allowed[0, 0], scores, _MASKED)
      weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
      return weights @ values

    return jax.lax.map(one_block, jnp.arange(blocks))

  out = jax.lax.map(one_head, jnp.arange(batch * heads))  # [batch * heads, blocks, block, kv]
  out = out.reshape(batch, heads, blocks * _BLOCK, width)[:, :, :query_length]
  return jnp.moveaxis(out, 1, 2)
