"""Fused attention for TPUs (Pallas): scores exist only in VMEM, one tile at a time.

Follows FlashAttention (Dao et al. 2022). T5's bias is computed in the kernel from one value per distance
(bias_tiles.py), and every kind of mask from one code per position (masks.mask_codes). Arrays are
[batch, heads, length, kv] in this file.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from t5like.kernels.attention.masks import Mask, mask_codes, visible
from t5like.kernels.attention.relative_bias import Alibi, RelativeBias, bias_by_distance
from t5like.kernels.attention.residuals import kv_head, name_residuals, sum_groups
from t5like.kernels.dropout import AttentionDropout, kept, odd_hash
from t5like.kernels.tpu.bias_tiles import strips, tile_from_window, window_from_tile

LANES = 128
# Larger tiles reuse more data, but the backward pass holds half a dozen float32 tiles in 16 MiB.
MAX_BLOCK = 256
_MASKED = -1e30  # finite: a fully masked row yields an average instead of NaN


@dataclasses.dataclass(frozen=True)
class AttentionShape:
  """Compile-time parameters of an attention kernel."""

  query_length: int  # padded to tiles
  key_length: int
  block_query: int
  block_key: int
  real_keys: int  # keys before padding
  causal: bool
  has_prefix: bool
  window: int | None
  group: int  # heads of queries that read one head of keys
  scale: float
  dropout_rate: float  # 0.0: no dropout
  interpret: bool

  @property
  def dropout_scale(self) -> float:
    return 1.0 / (1.0 - self.dropout_rate)

  @property
  def tiles(self) -> tuple[int, int]:
    return self.query_length // self.block_query, self.key_length // self.block_key

  def needed(self, i: jax.Array, j: jax.Array) -> jax.Array | bool:
    """Whether any query of tile row i may attend to a key of tile column j."""
    first_query, first_key = i * self.block_query, j * self.block_key
    needed = True
    if self.causal and not self.has_prefix:
      needed = first_key < first_query + self.block_query
    if self.window is not None:
      needed &= (first_query - first_key < self.window + self.block_key - 1) & (
        first_key - first_query < self.window + self.block_query - 1
      )
    return needed


def tpu_attention(
  query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, bias: RelativeBias | Alibi | None,
  scale: float, dropout: AttentionDropout | None = None, interpret: bool = False,
) -> jax.Array:  # fmt: skip
  """Computes attention; query, key, value [batch, length, heads, kv], of any length, padded here to tiles.

  Keys and values may have fewer heads: a tile of them is read for each query head of its group, and never repeated.
  """
  batch, query_length = query.shape[:2]
  key_length = key.shape[1]
  block_query, block_key = _block(query_length), _block(key_length)
  shape = AttentionShape(
    _padded_length(query_length, block_query), _padded_length(key_length, block_key), block_query, block_key,
    key_length, mask.causal, mask.causal and mask.prefix is not None, mask.window,
    query.shape[2] // key.shape[2], scale, 0.0 if dropout is None else dropout.rate, interpret,
  )  # fmt: skip
  more_queries, more_keys = shape.query_length - query_length, shape.key_length - key_length

  def padded(x, more):
    return jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, more), (0, 0)))

  strip = None
  if bias is not None:
    strip = strips(bias_by_distance(bias, shape.query_length, shape.key_length))
  codes = mask_codes(mask, batch, query_length, key_length)
  if codes is not None:
    query_code = jnp.pad(codes.query, ((0, 0), (0, more_queries)))
    key_code = jnp.pad(codes.key, ((0, 0), (0, more_keys)), constant_values=-2)
    # A column and a row of codes, each broadcast to a register so that the kernel can slice tiles from it.
    query_code = jnp.broadcast_to(query_code[:, :, None], (*query_code.shape, LANES))
    codes = query_code, jnp.broadcast_to(key_code[:, None, :], (batch, 8, shape.key_length))
  states = None if dropout is None else (dropout.query_state, dropout.key_state)
  operands = padded(query, more_queries), padded(key, more_keys), padded(value, more_keys)
  out = _attend(*operands, strip, codes, states, shape)
  return out[:, :, :query_length].swapaxes(1, 2)


def _block(length: int) -> int:
  """Returns 256 if that adds no more padding than 128, else 128."""
  return MAX_BLOCK if _padded_length(length, LANES) % MAX_BLOCK == 0 else LANES


def _padded_length(length: int, block: int) -> int:
  return -(-length // block) * block


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attend(query, key, value, strip, codes, states, shape: AttentionShape):
  return _forward(query, key, value, strip, codes, states, shape)[0]


def _forward(query, key, value, strip, codes, states, shape: AttentionShape):
  batch, heads, _, width = query.shape
  rows, columns = shape.tiles
  at_query = lambda b, h, i, j: (b, h, i, 0)  # noqa: E731
  at_key = lambda b, h, i, j: (b, kv_head(h, shape.group), j, 0)  # noqa: E731
  out, log_sums = pl.pallas_call(
    functools.partial(_forward_tile, shape=shape, has_bias=strip is not None, coded=codes is not None),
    grid=(batch, heads, rows, columns),
    in_specs=[
      pl.BlockSpec((None, None, shape.block_query, width), at_query),
      pl.BlockSpec((None, None, shape.block_key, width), at_key),
      pl.BlockSpec((None, None, shape.block_key, width), at_key),
      *_extra_specs(strip, codes, states, shape, lambda b, h, i, j: (b, h, i, j)),
    ],
    out_specs=[
      pl.BlockSpec((None, None, shape.block_query, width), at_query),
      pl.BlockSpec((None, None, shape.block_query, LANES), at_query),
    ],
    out_shape=[
      jax.ShapeDtypeStruct(query.shape, query.dtype),
      jax.ShapeDtypeStruct((*query.shape[:3], LANES), jnp.float32),
    ],
    scratch_shapes=[
      pltpu.VMEM((shape.block_query, LANES), jnp.float32),
      pltpu.VMEM((shape.block_query, LANES), jnp.float32),
      pltpu.VMEM((shape.block_query, width), jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")),
    interpret=shape.interpret,
    name="t5like_attention_forward",
  )(query, key, value, *_extra(strip, codes, states))
  out, log_sums = name_residuals(out, log_sums[..., 0])
  return out, (query, key, value, strip, codes, states, out, log_sums)


def _extra(strip, codes, states) -> list[jax.Array]:
  return [*(() if strip is None else (strip,)), *(codes or ()), *(states or ())]


def _extra_specs(strip, codes, states, shape: AttentionShape, to_tile) -> list[pl.BlockSpec]:
  """Returns specs of the strip, the codes and the states of dropout.

  `to_tile` maps grid indices to (batch, head, tile row, tile column).
  """
  specs = []
  if strip is not None:
    specs.append(pl.BlockSpec((None, *strip.shape[1:]), lambda *at: (to_tile(*at)[1], 0, 0)))
  if codes is not None:
    specs.append(pl.BlockSpec((None, shape.block_query, LANES), lambda *at: (to_tile(*at)[0], to_tile(*at)[2], 0)))
    specs.append(pl.BlockSpec((None, 8, shape.block_key), lambda *at: (to_tile(*at)[0], 0, to_tile(*at)[3])))
  if states is not None:
    specs += [pl.BlockSpec(memory_space=pltpu.SMEM)] * 2
  return specs


def drop(tile: jax.Array, state_refs, row, head, i, j, shape: AttentionShape) -> jax.Array:
  """Zeroes the dropped entries of tile (i, j); does not scale the others."""
  if not state_refs:
    return tile
  at_query = i * shape.block_query + jax.lax.broadcasted_iota(jnp.int32, (shape.block_query, 1), 0)
  at_key = j * shape.block_key + jax.lax.broadcasted_iota(jnp.int32, (1, shape.block_key), 1)
  query_bits = odd_hash(state_refs[0][row, head], at_query)
  key_bits = odd_hash(state_refs[1][row, head], at_key)
  return jnp.where(kept(query_bits, key_bits, shape.dropout_rate), tile, 0.0)


def window_start(shape: AttentionShape, i: jax.Array, j: jax.Array) -> jax.Array:
  """Returns the start of the strip's window for tile (i, j): a multiple of the register width."""
  start = j * shape.block_key - (i + 1) * shape.block_query + shape.query_length
  return pl.multiple_of(start, LANES)


def scores(query, key, strip_ref, code_refs, i, j, shape: AttentionShape) -> jax.Array:
  """Computes the masked scores of tile (i, j), [block_query, block_key] float32."""
  s = shape.scale * jax.lax.dot_general(query, key, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
  if strip_ref is not None:
    window = strip_ref[:, pl.ds(window_start(shape, i, j), shape.block_query + shape.block_key)]
    s = s + tile_from_window(window, shape.block_query)
  at_query = i * shape.block_query + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
  at_key = j * shape.block_key + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
  query_code = key_code = None
  if code_refs:
    query_code, key_code = code_refs[0][:, :1], code_refs[1][:1, :]
  allowed = visible(at_query, at_key, query_code, key_code, shape.causal, shape.window)
  # Codes hide padded keys, and causality hides them from unpadded queries.
  if not code_refs and not shape.causal and shape.real_keys < shape.key_length:
    inside = at_key < shape.real_keys
    allowed = inside if allowed is None else allowed & inside
  return s if allowed is None else jnp.where(allowed, s, _MASKED)


def split_refs(refs, has_bias: bool, coded: bool, shape: AttentionShape):
  """Splits a kernel's refs into those of the strip, of the codes, of the states of dropout, and the rest."""
  refs = list(refs)
  strip_ref = refs.pop(0) if has_bias else None
  code_refs = [refs.pop(0), refs.pop(0)] if coded else []
  state_refs = [refs.pop(0), refs.pop(0)] if shape.dropout_rate else []
  return strip_ref, code_refs, state_refs, refs


def _forward_tile(query_ref, key_ref, value_ref, *refs, shape: AttentionShape, has_bias: bool, coded: bool):
  strip_ref, code_refs, state_refs, refs = split_refs(refs, has_bias, coded, shape)
  out_ref, log_sums_ref, top_ref, sum_ref, mix_ref = refs
  b, h, i, j = (pl.program_id(axis) for axis in range(4))

  @pl.when(j == 0)
  def _():
    top_ref[...] = jnp.full_like(top_ref, _MASKED)
    sum_ref[...] = jnp.zeros_like(sum_ref)
    mix_ref[...] = jnp.zeros_like(mix_ref)

  @pl.when(shape.needed(i, j))
  def _():
    s = scores(query_ref[...], key_ref[...], strip_ref, code_refs, i, j, shape)
    top = jnp.maximum(top_ref[...], jnp.max(s, axis=1, keepdims=True))  # [block_query, lanes], all lanes equal
    shrink = jnp.exp(top_ref[...] - top)
    weights = jnp.exp(s - top[:, :1])
    sum_ref[...] = shrink * sum_ref[...] + jnp.sum(weights, axis=1, keepdims=True)
    dropped = drop(weights, state_refs, b, h, i, j, shape).astype(value_ref.dtype)
    mixed = jax.lax.dot(dropped, value_ref[...], preferred_element_type=jnp.float32)
    mix_ref[...] = shrink[:, :1] * mix_ref[...] + mixed
    top_ref[...] = top

  @pl.when(j == shape.tiles[1] - 1)
  def _():
    out_ref[...] = (mix_ref[...] * (shape.dropout_scale / sum_ref[:, :1])).astype(out_ref.dtype)
    log_sums_ref[...] = top_ref[...] + jnp.log(sum_ref[...])


def _backward(shape: AttentionShape, residuals, gradient):
  query, key, value, strip, codes, states, out, log_sums = residuals
  delta = jnp.einsum("bhqd,bhqd->bhq", out.astype(jnp.float32), gradient.astype(jnp.float32))
  # Broadcast to the width of a register, from which the kernel takes one column.
  wide = [jnp.broadcast_to(x[..., None], (*x.shape, LANES)) for x in (log_sums, delta)]
  operands = query, key, value, gradient, *wide
  d_query, d_strip = _query_gradient(operands, strip, codes, states, shape)
  d_key, d_value = _key_gradient(operands, strip, codes, states, shape)
  if shape.group > 1:
    d_key, d_value = (sum_groups(x, 1, shape.group) for x in (d_key, d_value))
  return d_query, d_key, d_value, d_strip, None, None


_attend.defvjp(_forward, _backward)


def _operand_specs(width: int, shape: AttentionShape, to_tile) -> list[pl.BlockSpec]:
  """Returns specs of query, key, value, the output's gradient, the softmax normalizers and delta."""
  at_query = lambda *at: (*to_tile(*at)[:3], 0)  # noqa: E731
  at_key = lambda *at: (to_tile(*at)[0], kv_head(to_tile(*at)[1], shape.group), to_tile(*at)[3], 0)  # noqa: E731
  by_query = pl.BlockSpec((None, None, shape.block_query, width), at_query)
  by_key = pl.BlockSpec((None, None, shape.block_key, width), at_key)
  column = pl.BlockSpec((None, None, shape.block_query, LANES), at_query)
  return [by_query, by_key, by_key, by_query, column, column]


def _query_gradient(operands, strip, codes, states, shape: AttentionShape):
  """Computes the gradients of the queries and the strip.

  Heads are the outermost grid axis, rows of the batch the next, so that a head's strip of bias gradients stays in VMEM.
  """
  batch, heads, _, width = operands[0].shape
  rows, columns = shape.tiles
  to_tile = lambda h, b, i, j: (b, h, i, j)  # noqa: E731
  specs = _operand_specs(width, shape, to_tile)
  out_specs, out_shape = [specs[0]], [jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype)]
  if strip is not None:
    out_specs.append(pl.BlockSpec((None, *strip.shape[1:]), lambda h, b, i, j: (h, 0, 0)))
    out_shape.append(jax.ShapeDtypeStruct(strip.shape, jnp.float32))
  d_query, *d_strip = pl.pallas_call(
    functools.partial(_query_gradient_tile, shape=shape, has_bias=strip is not None, coded=codes is not None),
    grid=(heads, batch, rows, columns),
    in_specs=[*specs, *_extra_specs(strip, codes, states, shape, to_tile)],
    out_specs=out_specs,
    out_shape=out_shape,
    scratch_shapes=[pltpu.VMEM((shape.block_query, width), jnp.float32)],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary", "arbitrary")),
    interpret=shape.interpret,
    name="t5like_attention_query_gradient",
  )(*operands, *_extra(strip, codes, states))
  return d_query, d_strip[0] if d_strip else None


def _score_gradient(
  query_ref, key_ref, value_ref, gradient_ref, log_sums_ref, delta_ref, strip_ref, code_refs, state_refs, b, h, i, j,
  shape,
):  # fmt: skip
  """Returns the weights of tile (i, j) and the gradient of its scores, both [block_query, block_key] float32."""
  s = scores(query_ref[...], key_ref[...], strip_ref, code_refs, i, j, shape)
  weights = jnp.exp(s - log_sums_ref[:, :1])
  d_weights = jax.lax.dot_general(
    gradient_ref[...], value_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
  )
  d_weights = drop(d_weights, state_refs, b, h, i, j, shape) * shape.dropout_scale
  return weights, weights * (d_weights - delta_ref[:, :1])


def _query_gradient_tile(*refs, shape: AttentionShape, has_bias: bool, coded: bool):
  operands, refs = refs[:6], refs[6:]
  strip_ref, code_refs, state_refs, outs = split_refs(refs, has_bias, coded, shape)
  d_query_ref, sum_ref = outs[0], outs[-1]
  h, b, i, j = (pl.program_id(axis) for axis in range(4))
  if has_bias:
    d_strip_ref = outs[1]

    @pl.when((b == 0) & (i == 0) & (j == 0))
    def _():
      d_strip_ref[...] = jnp.zeros_like(d_strip_ref)

  @pl.when(j == 0)
  def _():
    sum_ref[...] = jnp.zeros_like(sum_ref)

  @pl.when(shape.needed(i, j))
  def _():
    _, d_scores = _score_gradient(*operands, strip_ref, code_refs, state_refs, b, h, i, j, shape)
    key = operands[1][...]
    sum_ref[...] += shape.scale * jax.lax.dot(d_scores.astype(key.dtype), key, preferred_element_type=jnp.float32)
    if has_bias:
      window = pl.ds(window_start(shape, i, j), shape.block_query + shape.block_key)
      d_strip_ref[:, window] += window_from_tile(d_scores)

  @pl.when(j == shape.tiles[1] - 1)
  def _():
    d_query_ref[...] = sum_ref[...].astype(d_query_ref.dtype)


def _key_gradient(operands, strip, codes, states, shape: AttentionShape):
  batch, heads, _, width = operands[0].shape
  rows, columns = shape.tiles
  to_tile = lambda b, h, j, i: (b, h, i, j)  # noqa: E731
  specs = _operand_specs(width, shape, to_tile)
  # One gradient per head of queries; `_backward` sums those of a group.
  by_head = pl.BlockSpec((None, None, shape.block_key, width), lambda b, h, j, i: (b, h, j, 0))
  d_shape = (batch, heads, shape.key_length, width)
  return pl.pallas_call(
    functools.partial(_key_gradient_tile, shape=shape, has_bias=strip is not None, coded=codes is not None),
    grid=(batch, heads, columns, rows),
    in_specs=[*specs, *_extra_specs(strip, codes, states, shape, to_tile)],
    out_specs=[by_head, by_head],
    out_shape=[jax.ShapeDtypeStruct(d_shape, x.dtype) for x in operands[1:3]],
    scratch_shapes=[pltpu.VMEM((shape.block_key, width), jnp.float32)] * 2,
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")),
    interpret=shape.interpret,
    name="t5like_attention_key_gradient",
  )(*operands, *_extra(strip, codes, states))


def _key_gradient_tile(*refs, shape: AttentionShape, has_bias: bool, coded: bool):
  operands, refs = refs[:6], refs[6:]
  strip_ref, code_refs, state_refs, refs = split_refs(refs, has_bias, coded, shape)
  d_key_ref, d_value_ref, key_sum_ref, value_sum_ref = refs
  b, h, j, i = (pl.program_id(axis) for axis in range(4))

  @pl.when(i == 0)
  def _():
    key_sum_ref[...] = jnp.zeros_like(key_sum_ref)
    value_sum_ref[...] = jnp.zeros_like(value_sum_ref)

  @pl.when(shape.needed(i, j))
  def _():
    weights, d_scores = _score_gradient(*operands, strip_ref, code_refs, state_refs, b, h, i, j, shape)
    weights = drop(weights, state_refs, b, h, i, j, shape)
    query, gradient = operands[0][...], operands[3][...]
    over_queries = (((0,), (0,)), ((), ()))
    value_sum_ref[...] += jax.lax.dot_general(
      weights.astype(gradient.dtype), gradient, over_queries, preferred_element_type=jnp.float32
    )
    key_sum_ref[...] += shape.scale * jax.lax.dot_general(
      d_scores.astype(query.dtype), query, over_queries, preferred_element_type=jnp.float32
    )

  @pl.when(i == shape.tiles[0] - 1)
  def _():
    d_key_ref[...] = key_sum_ref[...].astype(d_key_ref.dtype)
    d_value_ref[...] = (shape.dropout_scale * value_sum_ref[...]).astype(d_value_ref.dtype)
