"""Attention on NVIDIA GPUs through cuDNN: scores stay on the chip, forward and backward.

T5's bias is passed as one matrix [1, heads, query, key] for the batch. cuDNN can also compute its gradient, summed over
the batch with atomic additions; `gpu.bias_gradient` sums it in registers instead, which on an H200 is as fast for
padded rows and faster for packed ones. JAX exposes cuDNN's backward pass without the bias gradient only through its
primitives, hence the private module.
"""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from t5like.kernels.attention.masks import Codes, Mask, mask_codes, visible
from t5like.kernels.attention.relative_bias import Alibi, RelativeBias, bias_by_distance, skew
from t5like.kernels.attention.residuals import name_residuals
from t5like.kernels.gpu.bias_gradient import bias_gradient

# Added to masked scores. In range for bfloat16; much larger numbers make cuDNN subtract infinities.
_MASKED = -(2.0**40)
_PARAMETERS = inspect.signature(cudnn.dot_product_attention).parameters


def cudnn_attention(
  query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, bias: RelativeBias | Alibi | None,
  scale: float, dropout: None = None,
) -> jax.Array:  # fmt: skip
  """Computes attention; query, key, value [batch, length, heads, kv] in bfloat16 or float16, kv a multiple of 8.

  Keys and values may have fewer heads, which cuDNN reads as they are. A window is cuDNN's own for a causal mask alone,
  and part of the score matrix otherwise.
  """
  assert dropout is None
  batch, given_length = query.shape[:2]
  if bias is not None or any(x is not None for x in (mask.prefix, mask.query_segments, mask.key_valid, mask.window)):
    query, key, value, mask = _pad_to_even_length(query, key, value, mask)
  query_length, key_length = query.shape[1], key.shape[1]
  by_distance = None if bias is None else bias_by_distance(bias, query_length, key_length)
  lengths = codes = None
  if mask.right_padded and mask.key_valid is not None and mask.query_segments is None and mask.prefix is None:
    lengths = jnp.sum(mask.key_valid.astype(bool), axis=1, dtype=jnp.int32)
    # A row without any key would divide by zero; its output is never read.
    lengths = jnp.maximum(lengths, 1)
  else:
    codes = mask_codes(mask, batch, query_length, key_length)
  # cuDNN skips tiles above the diagonal, but has no prefix mask.
  skips_future = mask.causal and mask.prefix is None
  if mask.window is not None and not (skips_future and bias is None and codes is None and lengths is None):
    codes = codes or Codes(*(jnp.zeros((batch, length), jnp.int32) for length in (query_length, key_length)))
  static = MaskSpec(mask.causal, skips_future, mask.window, isinstance(bias, RelativeBias))
  out = _attend(query, key, value, by_distance, codes, lengths, static, scale)
  return out[:, :given_length]


@dataclasses.dataclass(frozen=True)
class MaskSpec:
  """Compile-time parameters of a mask.

  skips_future  cuDNN applies causality, not the score matrix
  learned_bias  the bias has a gradient, as T5's
  """

  causal: bool
  skips_future: bool
  window: int | None
  learned_bias: bool


def _pad_to_even_length(
  query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask
) -> tuple[jax.Array, jax.Array, jax.Array, Mask]:
  """Pads odd lengths by one position: cuDNN only accepts score matrices of even sizes."""
  more_queries, more_keys = query.shape[1] % 2, key.shape[1] % 2
  if not more_queries and not more_keys:
    return query, key, value, mask
  valid = mask.key_valid
  if valid is None and not mask.causal:  # a causal mask already hides the added key
    valid = jnp.ones(key.shape[:2], bool)

  def padded(x, more):
    return None if x is None else jnp.pad(x, [(0, 0), (0, more)] + [(0, 0)] * (x.ndim - 2))

  mask = dataclasses.replace(
    mask,
    prefix=padded(mask.prefix, more_keys),
    query_segments=padded(mask.query_segments, more_queries),
    key_segments=padded(mask.key_segments, more_keys),
    key_valid=padded(valid, more_keys),
    right_padded=mask.right_padded or mask.key_valid is None,
  )
  return padded(query, more_queries), padded(key, more_keys), padded(value, more_keys), mask


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _attend(query, key, value, by_distance, codes, lengths, mask: MaskSpec, scale):
  return _forward(query, key, value, by_distance, codes, lengths, mask, scale)[0]


def _forward(query, key, value, by_distance, codes, lengths, mask: MaskSpec, scale):
  matrix = _score_matrix(query, key, by_distance, codes, mask)
  operands, settings = _call(query, key, value, matrix, lengths, mask, scale)
  out, log_sums = cudnn._dot_product_attention_fwd_p_wrapper.bind(*operands, **settings, is_training=True)
  out, log_sums = name_residuals(out, log_sums)
  return out, (query, key, value, by_distance, codes, lengths, matrix, out, log_sums)


def _backward(mask: MaskSpec, scale, residuals, gradient):
  query, key, value, by_distance, codes, lengths, matrix, out, log_sums = residuals
  operands, settings = _call(query, key, value, matrix, lengths, mask, scale)
  d_query, d_key, d_value = cudnn._dot_product_attention_bwd_p_wrapper.bind(
    *operands, log_sums, out, gradient, **settings
  )
  d_by_distance = None
  if mask.learned_bias:
    shape = query.shape[1], key.shape[1]
    transpose = jax.linear_transpose(lambda x: skew(x, *shape), by_distance)
    operands = query, key, value, out, gradient, log_sums, by_distance, codes, lengths
    (d_by_distance,) = transpose(bias_gradient(*operands, causal=mask.causal, scale=scale, window=mask.window))
  return d_query, d_key, d_value, d_by_distance, None, None


_attend.defvjp(_forward, _backward)


def _score_matrix(query, key, by_distance, codes: Codes | None, mask: MaskSpec) -> jax.Array | None:
  """Returns the bias plus any mask that cuDNN lacks, to add to the scores: [batch or 1, heads or 1, query, key]."""
  shape = query.shape[1], key.shape[1]
  matrix = None if by_distance is None else skew(by_distance, *shape)[None]
  if codes is not None:
    index = jnp.arange(shape[0])[None, :, None], jnp.arange(shape[1])[None, None, :]
    allowed = visible(*index, codes.query[:, :, None], codes.key[:, None, :], mask.causal, mask.window)[:, None]
    matrix = jnp.where(allowed, 0.0 if matrix is None else matrix, _MASKED)
  return None if matrix is None else matrix.astype(query.dtype)


def _call(query, key, value, matrix, lengths, mask: MaskSpec, scale: float):
  """Returns the operands and settings shared by cuDNN's forward and backward calls."""
  unused = jnp.zeros(0, query.dtype)
  kinds = cudnn.MaskType
  if lengths is None:
    kind, query_lengths, key_lengths = (kinds.CAUSAL if mask.skips_future else kinds.NO_MASK), unused, unused
  else:
    kind = kinds.PADDING_CAUSAL if mask.skips_future else kinds.PADDING
    query_lengths, key_lengths = jnp.full_like(lengths, query.shape[1]), lengths
  settings = dict(
    scale=scale, seed=0, dropout_rate=0.0, variadic_args=(matrix is not None, False), mask_type=kind,
    layout=cudnn.AttentionLayout.BTNH.value, sliding_window_length=mask.window if matrix is None else None,
  )  # fmt: skip
  if "score_mod" in _PARAMETERS:  # since JAX 0.12
    settings["score_mod"] = None
  matrix = unused if matrix is None else matrix
  return (query, key, value, matrix, query_lengths, key_lengths, unused, unused, unused, unused), settings
