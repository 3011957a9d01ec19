"""JAX's splash attention for TPUs, where there is no bias: blocks above the diagonal are left out of the grid itself.

Our own kernel (tpu_attention) visits every block of a causal mask and does nothing in those that are hidden; splash
attention is scheduled without them, and copies none of their keys.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from t5like.kernels.attention.keeping import ATTENTION_RESULTS
from t5like.kernels.attention.masks import Mask, mask_codes
from t5like.kernels.attention.relative_bias import RelativeBias

LANES = 128
MAX_BLOCK = 512  # of queries and of keys; larger blocks reuse more, and mask more than they need


def splash_attention(
  query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, bias: RelativeBias | None, scale: float,
  interpret: bool = False,
) -> jax.Array:  # fmt: skip
  """query, key, value [batch, length, heads, kv]; any lengths, padded here to whole blocks. No bias, no prefix."""
  assert bias is None and (mask.prefix is None or not mask.causal)
  batch, query_length, heads, _ = query.shape
  key_length = key.shape[1]
  block_query, block_key = _block(query_length), _block(key_length)
  more_queries, more_keys = -query_length % block_query, -key_length % block_key

  def to_batch(x, more):
    return jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, more), (0, 0)))  # [batch, heads, length, kv]

  segments = _segments(mask, batch, query_length, key_length, more_queries, more_keys)
  shape = query_length + more_queries, key_length + more_keys
  kernel = _kernel(heads, shape, (block_query, block_key), mask.causal, interpret)
  # Multiplied before the kernel, which knows no scale: by a power of two for heads of 64, so without rounding.
  scaled = (query.astype(jnp.float32) * scale).astype(query.dtype)
  operands = to_batch(scaled, more_queries), to_batch(key, more_keys), to_batch(value, more_keys)
  out = jax.vmap(kernel, in_axes=(0, 0, 0, None if segments is None else 0))(*operands, segments)
  return out[:, :, :query_length].swapaxes(1, 2)


def _block(length: int) -> int:
  """The largest block that adds no more padding than the smallest."""
  whole = -(-length // LANES) * LANES
  return max(block for block in (LANES, 2 * LANES, 4 * LANES) if block <= MAX_BLOCK and whole % block == 0)


def _kernel(heads: int, shape: tuple[int, int], blocks: tuple[int, int], causal: bool, interpret: bool):
  block_query, block_key = blocks
  kind = masks.CausalMask(shape) if causal else masks.FullMask(shape)
  sizes = splash.BlockSizes(
    block_q=block_query, block_kv=block_key, block_kv_compute=block_key, block_q_dkv=block_query,
    block_kv_dkv=block_key, block_kv_dkv_compute=block_key, block_q_dq=block_query, block_kv_dq=block_key,
  )  # fmt: skip
  return splash.make_splash_mha(
    masks.MultiHeadMask([kind] * heads), block_sizes=sizes, head_shards=1, q_seq_shards=1,
    residual_checkpoint_name=ATTENTION_RESULTS, interpret=interpret,
  )  # fmt: skip


def _segments(
  mask: Mask, batch: int, query_length: int, key_length: int, more_queries: int, more_keys: int
) -> splash.SegmentIds | None:
  """Examples of packed rows, and keys that nobody sees as an example of their own. None: causality is all there is."""
  codes = mask_codes(mask, batch, query_length, key_length)
  if codes is None:
    # A causal mask hides keys of padding from queries that are real.
    if mask.causal or not more_keys:
      return None
    codes = mask_codes(Mask(key_valid=jnp.ones((batch, key_length), bool)), batch, query_length, key_length)
  return splash.SegmentIds(
    q=jnp.pad(codes.query >> 1, ((0, 0), (0, more_queries))),
    kv=jnp.pad(codes.key >> 1, ((0, 0), (0, more_keys)), constant_values=-1),
  )
