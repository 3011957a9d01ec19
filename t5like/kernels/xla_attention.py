"""Plain matrix products: every device, every mask, dropout, cached decoding; memory grows with query x key."""

import jax
import jax.numpy as jnp

from t5like.kernels.masks import Mask, mask_matrix
from t5like.kernels.products import product
from t5like.kernels.relative_bias import RelativeBias, bias_matrix

# Added to masked scores. Finite, so that a row with nothing to look at (an
# empty row of padding) comes out as a harmless average and not as NaN.
_MASKED = -1e30


def xla_attention(
  query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, bias: RelativeBias | None, scale: float,
  query_offset: jax.Array | None = None, dropout_rate: float = 0.0, dropout_key: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
  lengths = query.shape[1], key.shape[1]
  scores = scale * product("bqhd,bkhd->bhqk", query, key, jnp.float32)
  if bias is not None:
    scores = scores + bias_matrix(bias, *lengths, query_offset)
  allowed = mask_matrix(mask, *lengths, query_offset)
  if allowed is not None:
    scores = jnp.where(allowed, scores, _MASKED)
  weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
  if dropout_rate > 0.0 and dropout_key is not None:
    keep = jax.random.bernoulli(dropout_key, 1.0 - dropout_rate, weights.shape)
    weights = jnp.where(keep, weights / (1.0 - dropout_rate), 0.0)
  return jnp.einsum("bhqk,bkhd->bqhd", weights, value)
