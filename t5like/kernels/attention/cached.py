"""Attention of one new token per row over a KV cache.

A cache has up to two parts. The shared part (a prompt, or an encoder's outputs) is read by all hypotheses of a row,
i.e. its beams or samples. The generated part holds what each hypothesis has written since, the same number of tokens
in every row, so that a step writes one slice and a kernel reads no further. Keys and values are stored together as
[rows, 2, heads, length, kv]: one write per step, and each head's keys are contiguous in memory.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

_MASKED = -1e30  # finite: a fully masked row yields an average instead of NaN
# The fastest of nine on an H200 for T5 and GPT-2. Over 512 shared keys it reads 3.6 TB/s; a plain copy moves 4.2.
_BLOCK, _WARPS = 32, 4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedKV:
  """Keys and values shared by all hypotheses of a batch row; rows = batch * hypotheses per batch row."""

  keys_values: jax.Array  # [batch, 2, heads, length, kv]
  valid: jax.Array  # [batch, length] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DistanceBias:
  """A bias that depends on the distance from the query back to the key."""

  by_distance: jax.Array  # [heads, max distance + 1] float32: entry n is for a key n positions before the query
  index: jax.Array  # [rows]: the new token's position, counted from the first shared key


def attend_and_write(
  new: jax.Array,  # [rows, 3, heads, kv]: the token's query, key and value
  generated: jax.Array,  # [rows, 2, heads, length, kv]
  position: jax.Array,  # []: the token's position in `generated`; later ones are not read
  shared: SharedKV | None = None,
  bias: DistanceBias | None = None,
  scale: float = 1.0,
  kernel: bool | None = None,
  interpret: bool = False,
  prefix: jax.Array | None = None,  # [2, tokens, heads, kv]: learned keys and values, without bias
) -> tuple[jax.Array, jax.Array]:
  """Attends to the shared part, the generated part and the token itself: softmax(scale * q k^T + bias) v in float32.

  Returns the result [rows, heads, kv] and `generated` with the token written to it (in place inside a loop).
  `kernel=None` uses the fused kernel if this machine supports it.
  """
  if prefix is None and (has_kernel() if kernel is None else kernel):
    return _fused(new, generated, position, shared, bias, scale, interpret)
  written = jnp.swapaxes(new[:, 1:, None], 2, 3).astype(generated.dtype)  # [rows, 2, heads, 1, kv]
  generated = jax.lax.dynamic_update_slice_in_dim(generated, written, position, axis=3)
  return _plain(new[:, 0], generated, position, shared, bias, scale, prefix), generated


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
    return _fused(query[:, None], None, None, shared, None, scale, interpret)[0]
  return _plain(query, None, None, shared, None, scale, prefix)


def has_kernel() -> bool:
  """Whether the fused kernel applies; only on a single GPU, because the partitioner cannot split it."""
  mesh = jax.sharding.get_abstract_mesh()
  return jax.default_backend() == "gpu" and (mesh.empty or mesh.size == 1)


def _plain(
  query: jax.Array, generated: jax.Array | None, position: jax.Array | None, shared: SharedKV | None,
  bias: DistanceBias | None, scale: float, prefix: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
  rows, heads, kv = query.shape
  scores, learned = [], 0
  if prefix is not None:
    prefix, learned = prefix.astype(query.dtype), prefix.shape[1]
    scores.append(scale * _product("rhd,khd->rhk", query, prefix[0]))
  if shared is not None:
    batch, _, _, length, _ = shared.keys_values.shape
    split = query.reshape(batch, rows // batch, heads, kv)
    s = scale * _product("bnhd,bhkd->bnhk", split, shared.keys_values[:, 0])
    if bias is not None:
      back = bias.index.reshape(batch, -1, 1) - jnp.arange(length)[None, None, :]
      s = s + jnp.einsum("hbnk->bnhk", _bias_at(bias.by_distance, back))
    s = jnp.where(shared.valid[:, None, None, :], s, _MASKED)
    scores.append(s.reshape(rows, heads, length))
  if generated is not None:
    positions = jnp.arange(generated.shape[3])
    s = scale * _product("rhd,rhkd->rhk", query, generated[:, 0])
    if bias is not None:
      s = s + _bias_at(bias.by_distance, position - positions)[None]
    scores.append(jnp.where((positions <= position)[None, None, :], s, _MASKED))
  weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
  out = jnp.zeros(query.shape, jnp.float32)
  if learned:
    out = out + _product("rhk,khd->rhd", weights[..., :learned].astype(query.dtype), prefix[1])
  if shared is not None:
    w = weights[..., learned : learned + length].reshape(batch, -1, heads, length).astype(query.dtype)
    out = out + _product("bnhk,bhkd->bnhd", w, shared.keys_values[:, 1]).reshape(query.shape)
  if generated is not None:
    w = weights[..., weights.shape[-1] - len(positions) :].astype(query.dtype)
    out = out + _product("rhk,rhkd->rhd", w, generated[:, 1])
  return out.astype(query.dtype)


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
  return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _bias_at(by_distance: jax.Array, back: jax.Array) -> jax.Array:
  """Returns entries of [heads, max distance + 1]; out-of-range distances are clipped, since such keys are masked."""
  return jnp.take(by_distance, jnp.clip(back, 0, by_distance.shape[1] - 1), axis=1)


def _fused(
  new: jax.Array, generated: jax.Array | None, position: jax.Array | None, shared: SharedKV | None,
  bias: DistanceBias | None, scale: float, interpret: bool,
) -> list[jax.Array]:  # fmt: skip
  """Runs one program per row and head; hypotheses of a batch row run together and share its keys in the GPU's cache."""
  rows, _, heads, kv = new.shape
  batch, operands = rows, {"new": new}
  out = [jax.ShapeDtypeStruct((rows, heads, kv), new.dtype)]
  if shared is not None:
    batch, length = shared.valid.shape
    lengths = jnp.max(jnp.where(shared.valid, jnp.arange(1, length + 1)[None, :], 0), axis=1)
    operands |= {"shared": shared.keys_values, "valid": shared.valid.astype(jnp.int8)}
    operands["lengths"] = lengths.astype(jnp.int32)
  if bias is not None:
    operands |= {"bias": bias.by_distance, "index": bias.index}
  aliases = {}
  if generated is not None:
    aliases = {len(operands): 1}
    operands |= {"generated": generated, "position": position.reshape(1)}
    out.append(jax.ShapeDtypeStruct(generated.shape, generated.dtype))
  return pl.pallas_call(
    functools.partial(_cached_attention_kernel, names=tuple(operands), scale=scale),
    out_shape=out,
    grid=(rows // batch, heads, batch),
    in_specs=[_full_spec(x) for x in operands.values()],
    out_specs=[_full_spec(x) for x in out],
    input_output_aliases=aliases,
    compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
    interpret=interpret,
    name="cached_attention",
  )(*operands.values())


def _full_spec(x: jax.Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
  return pl.BlockSpec(x.shape, lambda *_: (0,) * x.ndim)


def _cached_attention_kernel(*refs, names: tuple[str, ...], scale: float):
  """Attends to blocks of shared keys, blocks of generated keys, and the token itself.

  Each of the `_BLOCK` positions in a block has its own online softmax (Milakov and Gimelshein 2018); they are merged at
  the end, so that the threads of a program never synchronize inside the loops.
  """
  outputs, refs = refs[len(names) :], dict(zip(names, refs[: len(names)], strict=True))
  hypotheses, head, batch_row = pl.num_programs(0), pl.program_id(1), pl.program_id(2)
  row = batch_row * hypotheses + pl.program_id(0)
  width = outputs[0].shape[-1]
  at_kv = jnp.arange(pl.next_power_of_2(width))
  real_kv = None if len(at_kv) == width else at_kv < width  # unmasked loads are vectorized
  other = None if real_kv is None else 0.0

  def newest(which):
    return triton.load(refs["new"].at[row, which, head, at_kv], mask=real_kv, other=other).astype(jnp.float32)

  query = scale * newest(0)

  def attend_all(state, keys_values, row, back, count, valid_ref):
    """Attends to keys 0 to `count`, the first of which is `back` positions before the token."""

    def read(block):
      positions = block * _BLOCK + jnp.arange(_BLOCK)
      mask = (positions < count)[:, None] & (real_kv if real_kv is not None else at_kv >= 0)[None, :]
      at = (keys_values.at[row, which, head, positions[:, None], at_kv[None, :]] for which in (0, 1))
      return tuple(triton.load(ref, mask=mask, other=0.0) for ref in at)

    def attend_block(block, carry):
      (highest, total, out), (keys, values) = carry
      following = read(block + 1)  # prefetched while this block is processed
      positions = block * _BLOCK + jnp.arange(_BLOCK)
      inside = positions < count
      if valid_ref is not None:
        inside = triton.load(valid_ref.at[row, positions], mask=inside, other=0) != 0
      scores = jnp.sum(keys.astype(jnp.float32) * query[None, :], axis=1)
      if "bias" in refs:
        scores += triton.load(refs["bias"].at[head, back - positions], mask=inside, other=0.0)
      scores = jnp.where(inside, scores, _MASKED)
      above = jnp.maximum(highest, scores)
      weights = jnp.where(inside, jnp.exp(scores - above), 0.0)
      shrink = jnp.exp(highest - above)
      out = shrink[:, None] * out + weights[:, None] * values.astype(jnp.float32)
      return (above, shrink * total + weights, out), following

    return jax.lax.fori_loop(0, pl.cdiv(count, _BLOCK), attend_block, (state, read(0)))[0]

  none = jnp.zeros((_BLOCK,), jnp.float32)
  state = none + _MASKED, none, jnp.zeros((_BLOCK, len(at_kv)), jnp.float32)
  if "shared" in refs:
    back = refs["index"][row] if "bias" in refs else None
    state = attend_all(state, refs["shared"], batch_row, back, refs["lengths"][batch_row], refs["valid"])
  if "generated" in refs:
    position = refs["position"][0]
    state = attend_all(state, refs["generated"], row, position, position, None)
  highest, total, out = state
  top = jnp.max(highest)
  if "generated" in refs:
    key, value = newest(1), newest(2)
    score = jnp.sum(query * key)
    if "bias" in refs:
      score += refs["bias"][head, 0]
    top = jnp.maximum(top, score)
  shrink = jnp.exp(highest - top)
  total, out = jnp.sum(shrink * total), jnp.sum(shrink[:, None] * out, axis=0)
  if "generated" in refs:
    weight = jnp.exp(score - top)
    total, out = total + weight, out + weight * value
    for which, x in enumerate((key, value)):
      at = outputs[1].at[row, which, head, position, at_kv]
      triton.store(at, x.astype(outputs[1].dtype), mask=real_kv)
  out = out / jnp.maximum(total, 1e-30)
  triton.store(outputs[0].at[row, head, at_kv], out.astype(outputs[0].dtype), mask=real_kv)
