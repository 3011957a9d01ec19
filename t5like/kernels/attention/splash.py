"""JAX's splash attention for TPUs, for attention without a bias.

Our kernel (tpu.attention) visits the masked blocks of a causal mask and skips their computation; splash attention
leaves them out of its grid and does not copy their keys.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from t5like.kernels.attention.masks import Mask, mask_codes
from t5like.kernels.attention.relative_bias import Alibi, RelativeBias
from t5like.kernels.attention.residuals import ATTENTION_RESULTS

LANES = 128
MAX_BLOCK = 512  # queries and keys; larger blocks reuse more data but compute more masked scores


def splash_attention(
  query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, bias: RelativeBias | Alibi | None,
  scale: float, dropout: None = None, interpret: bool = False,
) -> jax.Array:  # fmt: skip
  """Computes attention without bias or prefix; query, key, value [batch, length, heads, kv], padded here to blocks.

  Keys and values may have fewer heads.
  """
  assert bias is None and dropout is None and (mask.prefix is None or not mask.causal)
  batch, query_length, heads, _ = query.shape
  key_length = key.shape[1]
  block_query, block_key = _block(query_length), _block(key_length)
  more_queries, more_keys = -query_length % block_query, -key_length % block_key

  def padded(x, more):
    return jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, more), (0, 0)))  # [batch, heads, length, kv]

  segments = _segments(mask, batch, query_length, key_length, more_queries, more_keys)
  shape = query_length + more_queries, key_length + more_keys
  kernel = _kernel(heads, shape, (block_query, block_key), mask, interpret)
  # The kernel has no scale argument. For heads of 64 the scale is a power of two, so this does not round.
  scaled = (query.astype(jnp.float32) * scale).astype(query.dtype)
  operands = padded(scaled, more_queries), padded(key, more_keys), padded(value, more_keys)
  out = jax.vmap(kernel, in_axes=(0, 0, 0, None if segments is None else 0))(*operands, segments)
  return out[:, :, :query_length].swapaxes(1, 2)


def _block(length: int) -> int:
  """Returns the largest block that adds no more padding than the smallest."""
  padded_length = -(-length // LANES) * LANES
  return max(block for block in (LANES, 2 * LANES, 4 * LANES) if block <= MAX_BLOCK and padded_length % block == 0)


def _kernel(heads: int, shape: tuple[int, int], blocks: tuple[int, int], mask: Mask, interpret: bool):
  block_query, block_key = blocks
  kind = masks.CausalMask(shape) if mask.causal else masks.FullMask(shape)
  if mask.window is not None:
    kind = masks.LocalMask(shape, (mask.window - 1, 0 if mask.causal else mask.window - 1), offset=0)
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
  """Returns segment ids, with hidden keys in a segment of their own; None if causality is the only condition."""
  codes = mask_codes(mask, batch, query_length, key_length)
  if codes is None:
    # A causal mask already hides padded keys from unpadded queries.
    if mask.causal or not more_keys:
      return None
    codes = mask_codes(Mask(key_valid=jnp.ones((batch, key_length), bool)), batch, query_length, key_length)
  return splash.SegmentIds(
    q=jnp.pad(codes.query >> 1, ((0, 0), (0, more_queries))),
    kv=jnp.pad(codes.key >> 1, ((0, 0), (0, more_keys)), constant_values=-1),
  )
