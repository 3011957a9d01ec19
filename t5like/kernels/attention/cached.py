"""Attention of one new token per row over a KV cache.

A row of the batch has one or more hypotheses: its beams or samples. A cache has up to two parts. The shared part (a
prompt, or an encoder's outputs) is read by all hypotheses of a row. The generated part holds what each hypothesis has
written since, the same number of tokens in every row, so that a step writes one slice and a kernel reads no further.
Keys and values are stored together as [rows, 2, kv_heads, length, kv], where rows = batch * hypotheses: one write per
step, and each head's keys are contiguous in memory. A group of heads / kv_heads neighboring queries reads one of them.

Beam search replaces hypotheses by continuations of others. What they have written is not moved. Instead, `origins`
[batch, hypotheses, length] says which hypothesis of the row wrote the token that a hypothesis has at a position.
Samples have none: each reads only what it wrote.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5like.kernels.attention.masks import static
from t5like.kernels.attention.synthesized import Synthesized
from t5like.kernels.gpu.cached_attention import attend_per_row
from t5like.kernels.gpu.hypotheses import attend_per_batch_row
from t5like.kernels.products import product

_MASKED = -1e30  # finite: a fully masked row yields an average instead of NaN


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedKV:
  """Keys and values shared by all hypotheses of a batch row."""

  keys_values: jax.Array  # [batch, 2, kv_heads, length, kv]
  valid: jax.Array  # [batch, length] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GeneratedKV:
  """Keys and values that the hypotheses have written."""

  keys_values: jax.Array  # [rows, 2, kv_heads, length, kv]
  position: jax.Array  # []: where the new token is written; later positions are not read
  origins: jax.Array | None = None  # [batch, hypotheses, length] int32; None: each hypothesis wrote its own tokens
  window: int | None = static(None)  # positions that are read, the new one included; None: all


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepScores:
  """A Synthesizer's scores of the new token for the tokens at all positions."""

  scores: Synthesized  # [rows, heads, positions]
  index: jax.Array  # [rows]: the new token's position, counted from the first shared key


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DistanceBias:
  """A bias that depends on the distance from the query back to the key."""

  by_distance: jax.Array  # [heads, max distance + 1] float32: entry n is for a key n positions before the query
  index: jax.Array  # [rows]: the new token's position, counted from the first shared key


def attend_and_write(
  # The token's query, key and value, [rows, 3, heads, kv]; or the query [rows, heads, kv] and the others
  # [rows, 2, kv_heads, kv].
  new: jax.Array | tuple[jax.Array, jax.Array],
  generated: GeneratedKV,
  shared: SharedKV | None = None,
  bias: DistanceBias | None = None,
  scale: float = 1.0,
  kernel: bool | None = None,
  interpret: bool = False,
  prefix: jax.Array | None = None,  # [2, tokens, kv_heads, kv]: learned keys and values, without bias
  synthesized: StepScores | None = None,  # for as many heads of keys as of queries
) -> tuple[jax.Array, jax.Array]:
  """Attends to the shared part, the generated part and the token itself: softmax(scale * q k^T + bias) v in float32.

  Returns the result [rows, heads, kv] and the generated keys and values with the token's (in place inside a loop).
  `kernel=None` uses a fused kernel if this machine supports it.
  """
  if prefix is None and synthesized is None and (has_kernel() if kernel is None else kernel):
    return _fused(_joined(new), generated, shared, bias, scale, interpret)
  query, keys_values = new if isinstance(new, tuple) else (new[:, 0], new[:, 1:])
  written = keys_values[:, :, :, None].astype(generated.keys_values.dtype)  # [rows, 2, kv_heads, 1, kv]
  written = jax.lax.dynamic_update_slice_in_dim(generated.keys_values, written, generated.position, axis=3)
  generated = dataclasses.replace(generated, keys_values=written)
  return _plain(query, generated, shared, bias, scale, prefix, synthesized), written


def attend(
  query: jax.Array,  # [rows, heads, kv]
  shared: SharedKV,
  scale: float = 1.0,
  kernel: bool | None = None,
  interpret: bool = False,
  prefix: jax.Array | None = None,
) -> jax.Array:  # [rows, heads, kv]
  """Attends to the shared part only: softmax(scale * q k^T) v."""
  if prefix is None and (has_kernel() if kernel is None else kernel):
    return _fused(query, None, shared, None, scale, interpret)[0]
  return _plain(query, None, shared, None, scale, prefix)


def has_kernel() -> bool:
  """Whether the fused kernels apply; only on a single GPU, because the partitioner cannot split them."""
  mesh = jax.sharding.get_abstract_mesh()
  return jax.default_backend() == "gpu" and (mesh.empty or mesh.size == 1)


def _plain(
  query: jax.Array, generated: GeneratedKV | None, shared: SharedKV | None, bias: DistanceBias | None, scale: float,
  prefix: jax.Array | None, synthesized: StepScores | None = None,
) -> jax.Array:  # fmt: skip
  """Attends with plain products.

  In the equations, n are hypotheses, m those that wrote a key, h heads of keys, g those of queries that read one, and k
  keys.
  """
  batch, (_, heads, kv) = _batch_size(query, generated, shared), query.shape
  kv_heads = (generated or shared).keys_values.shape[2]
  split = query.reshape(batch, -1, kv_heads, heads // kv_heads, kv)
  scores, learned = [], 0
  if prefix is not None:
    prefix, learned = prefix.astype(query.dtype), prefix.shape[1]
    scores.append(scale * _product("bnhgd,khd->bnhgk", split, prefix[0]))
  if shared is not None:
    length = shared.valid.shape[1]
    s = scale * _product("bnhgd,bhkd->bnhgk", split, shared.keys_values[:, 0])
    if synthesized is not None:
      s = _with_synthesized(s, synthesized, jnp.zeros((1,), jnp.int32))
    if bias is not None:
      back = bias.index.reshape(batch, -1, 1) - jnp.arange(length)[None, None, :]
      s = s + jnp.einsum("hbnk->bnhk", _bias_at(bias.by_distance, back)).reshape(s.shape)
    scores.append(jnp.where(shared.valid[:, None, None, None, :], s, _MASKED))
  if generated is not None:
    # To attend to what all beams of the row have written, and mask the others, is cheaper than to gather.
    m = "" if generated.origins is None else "m"
    written = generated.keys_values.reshape(batch, -1, *generated.keys_values.shape[1:])
    s = scale * _product(f"bnhgd,b{m or 'n'}hkd->bnhg{m}k", split, written[:, :, 0])
    if synthesized is not None:
      s = _with_synthesized(s, synthesized, synthesized.index - generated.position)
    if bias is not None:
      by_key = _bias_at(bias.by_distance, generated.position - jnp.arange(s.shape[-1]))  # [heads, key]
      s = s + by_key.reshape(1, 1, *s.shape[2:4], *(1 for _ in m), -1)
    visible = _own(generated, *s.shape[4:])[:, :, None, None] if m else _readable(generated, s.shape[-1])
    scores.append(jnp.where(visible, s, _MASKED).reshape(*s.shape[:4], -1))
  weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1).astype(query.dtype)
  out = jnp.zeros(split.shape, jnp.float32)
  if learned:
    out = out + _product("bnhgk,khd->bnhgd", weights[..., :learned], prefix[1])
  if shared is not None:
    out = out + _product("bnhgk,bhkd->bnhgd", weights[..., learned : learned + length], shared.keys_values[:, 1])
  if generated is not None:
    weights = weights[..., -scores[-1].shape[-1] :].reshape(s.shape)
    out = out + _product(f"bnhg{m}k,b{m or 'n'}hkd->bnhgd", weights, written[:, :, 1])
  return out.astype(query.dtype).reshape(query.shape)


def _with_synthesized(products: jax.Array, given: StepScores, first: jax.Array) -> jax.Array:
  """Returns scores of the shape of `products`, [batch, n, heads, 1, (m,) key]; the first key is at a position.

  Where scores replace products, XLA does not compute them. Positions after the last are those of masked keys.
  """
  scores = given.scores.scores
  at = jnp.clip(first[:, None, None] + jnp.arange(products.shape[-1])[None, None, :], 0, scores.shape[2] - 1)
  scores = jnp.take_along_axis(scores, at, axis=2)  # [rows, heads, key]
  shape = (*products.shape[:3], *(1,) * (products.ndim - 4), products.shape[-1])
  return jnp.broadcast_to(given.scores.mixed(products, scores.reshape(shape)), products.shape)


def _own(generated: GeneratedKV, hypotheses: int, length: int) -> jax.Array:
  """Whether hypothesis n reads the token that hypothesis m wrote at a position, [batch, n, m, length]."""
  index = jnp.arange(hypotheses)
  newest = (index[:, None] == index[None, :])[None, :, :, None]
  before = jnp.arange(length)[None, None, None, :] < generated.position
  own = jnp.where(before, generated.origins[:, :, None, :] == index[None, None, :, None], newest)
  return own & _readable(generated, length)[None, None, None, :]


def _readable(generated: GeneratedKV, length: int) -> jax.Array:
  """Whether tokens at a position are read, [length]."""
  positions = jnp.arange(length)
  readable = positions <= generated.position
  if generated.window is not None:
    readable = readable & (positions > generated.position - generated.window)
  return readable


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
  return product(equation, a, b, jnp.float32)


def _bias_at(by_distance: jax.Array, back: jax.Array) -> jax.Array:
  """Returns entries of [heads, max distance + 1]; out-of-range distances are clipped, since such keys are masked."""
  return jnp.take(by_distance, jnp.clip(back, 0, by_distance.shape[1] - 1), axis=1)


def _joined(new: jax.Array | tuple[jax.Array, jax.Array]) -> jax.Array:
  """Returns the heads of the query, of the key and of the value: [rows, heads + 2 kv_heads, kv]."""
  parts = new if isinstance(new, tuple) else (new,)
  return jnp.concatenate([part.reshape(len(part), -1, part.shape[-1]) for part in parts], axis=1)


def _batch_size(query: jax.Array, generated: GeneratedKV | None, shared: SharedKV | None) -> int:
  if shared is not None:
    return shared.valid.shape[0]
  return len(query if generated.origins is None else generated.origins)


def _fused(
  new: jax.Array, generated: GeneratedKV | None, shared: SharedKV | None, bias: DistanceBias | None, scale: float,
  interpret: bool,
) -> list[jax.Array]:  # fmt: skip
  """Runs the kernel for one hypothesis per row, or that for several."""
  operands = {"new": new}
  if shared is not None:
    length = shared.valid.shape[1]
    lengths = jnp.max(jnp.where(shared.valid, jnp.arange(1, length + 1)[None, :], 0), axis=1)
    operands |= {"shared": shared.keys_values, "valid": shared.valid.astype(jnp.int8)}
    operands["lengths"] = lengths.astype(jnp.int32)
  if bias is not None:
    operands |= {"bias": bias.by_distance, "index": bias.index}
  if generated is not None:
    operands |= {"generated": generated.keys_values, "position": generated.position.reshape(1)}
    if generated.window is not None:
      operands["first"] = jnp.maximum(generated.position - generated.window + 1, 0).astype(jnp.int32).reshape(1)
  batch = _batch_size(new, generated, shared)
  if batch == len(new):
    return attend_per_row(operands, scale, interpret)
  if generated is not None:
    operands["origins"] = generated.origins
    if generated.origins is None:
      hypotheses, length = len(new) // batch, generated.keys_values.shape[3]
      operands["origins"] = jnp.broadcast_to(jnp.arange(hypotheses)[None, :, None], (batch, hypotheses, length))
  return attend_per_batch_row(operands, batch, scale, interpret)
