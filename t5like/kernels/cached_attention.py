"""Attention of one new token a row over cached keys and values.

A cache has up to two parts. The fixed part (a prompt, or an encoder's outputs) is read by all copies of a row: beams
and samples share it. The grown part holds what each copy has written since, the same number of tokens in every row,
so that a step writes one slice and a kernel reads no further than that. Keys and values lie together as
[rows, 2, heads, length, kv]: one write a step, and each head's keys are one contiguous stretch of memory.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

_MASKED = -1e30  # finite: a row with nothing to look at comes out as an average, not as NaN
_BLOCK = 128
_WARPS = 4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Grown:
  """What every copy wrote itself; tokens 0 to `last` are there."""

  keys_values: jax.Array  # [rows, 2, heads, length, kv]
  last: jax.Array  # []: the place of the newest token, the same in all rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
  """What all copies of a row share; rows are `copies` times as many."""

  keys_values: jax.Array  # [batch, 2, heads, length, kv]
  valid: jax.Array  # [batch, length] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PastBias:
  """A bias by how far back a key lies; `index` tells where each row's token stands from the fixed part's first."""

  by_distance: jax.Array  # [heads, furthest + 1] float32: entry n is for a key n positions before the query
  index: jax.Array  # [rows]


def cached_attention(
  query: jax.Array,  # [rows, heads, kv]
  grown: Grown | None = None,
  fixed: Fixed | None = None,
  bias: PastBias | None = None,
  scale: float = 1.0,
  kernel: bool | None = None,
  interpret: bool = False,
) -> jax.Array:  # [rows, heads, kv]
  """softmax(scale * q k^T + bias) v over both parts, in float32. `kernel` None: where this machine has one."""
  kernel = has_kernel() if kernel is None else kernel
  if kernel:
    return _fused(query, grown, fixed, bias, scale, interpret)
  return _plain(query, grown, fixed, bias, scale)


def has_kernel() -> bool:
  """The kernel is for one GPU: the partitioner cannot split it, so a mesh of several takes plain products."""
  mesh = jax.sharding.get_abstract_mesh()
  return jax.default_backend() == "gpu" and (mesh.empty or mesh.size == 1)


def _plain(query: jax.Array, grown: Grown | None, fixed: Fixed | None, bias: PastBias | None, scale: float):
  rows, heads, kv = query.shape
  scores = []
  if fixed is not None:
    batch, _, _, length, _ = fixed.keys_values.shape
    split = query.reshape(batch, rows // batch, heads, kv)
    s = scale * _product("bnhd,bhkd->bnhk", split, fixed.keys_values[:, 0])
    if bias is not None:
      back = bias.index.reshape(batch, -1, 1) - jnp.arange(length)[None, None, :]
      s = s + jnp.einsum("hbnk->bnhk", _at(bias.by_distance, back))
    s = jnp.where(fixed.valid[:, None, None, :], s, _MASKED)
    scores.append(s.reshape(rows, heads, length))
  if grown is not None:
    places = jnp.arange(grown.keys_values.shape[3])
    s = scale * _product("rhd,rhkd->rhk", query, grown.keys_values[:, 0])
    if bias is not None:
      s = s + _at(bias.by_distance, grown.last - places)[None]
    scores.append(jnp.where((places <= grown.last)[None, None, :], s, _MASKED))
  weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
  out = jnp.zeros(query.shape, jnp.float32)
  if fixed is not None:
    w = weights[..., :length].reshape(batch, -1, heads, length).astype(query.dtype)
    out = out + _product("bnhk,bhkd->bnhd", w, fixed.keys_values[:, 1]).reshape(query.shape)
  if grown is not None:
    w = weights[..., weights.shape[-1] - len(places) :].astype(query.dtype)
    out = out + _product("rhk,rhkd->rhd", w, grown.keys_values[:, 1])
  return out.astype(query.dtype)


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
  return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _at(by_distance: jax.Array, back: jax.Array) -> jax.Array:
  """Entries of [heads, furthest + 1], the nearest where there is none: such keys are masked."""
  return jnp.take(by_distance, jnp.clip(back, 0, by_distance.shape[1] - 1), axis=1)


def _fused(query: jax.Array, grown: Grown | None, fixed: Fixed | None, bias: PastBias | None, scale: float, interpret):
  """One program for each row and head; copies of a row run side by side and find its fixed part in the GPU's cache."""
  rows, heads, _ = query.shape
  operands = {"query": query}
  batch = rows
  if grown is not None:
    operands |= {"grown": grown.keys_values, "last": grown.last.reshape(1)}
  if fixed is not None:
    batch, length = fixed.valid.shape
    reach = jnp.max(jnp.where(fixed.valid, jnp.arange(1, length + 1)[None, :], 0), axis=1)
    operands |= {"fixed": fixed.keys_values, "valid": fixed.valid.astype(jnp.int8), "reach": reach.astype(jnp.int32)}
  if bias is not None:
    operands |= {"bias": bias.by_distance, "index": bias.index}
  return pl.pallas_call(
    functools.partial(_program, names=tuple(operands), scale=scale),
    out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
    grid=(rows // batch, heads, batch),
    in_specs=[pl.BlockSpec(x.shape, functools.partial(_origin, x.ndim)) for x in operands.values()],
    out_specs=pl.BlockSpec(query.shape, functools.partial(_origin, 3)),
    compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=2),
    interpret=interpret,
    name="cached_attention",
  )(*operands.values())


def _origin(ndim: int, *_):
  return (0,) * ndim


def _program(*refs, names: tuple[str, ...], scale: float):
  """A running softmax over blocks of keys (Milakov and Gimelshein 2018), first the fixed ones, then the grown."""
  refs, out_ref = dict(zip(names, refs[:-1], strict=True)), refs[-1]
  copies, head, row = pl.num_programs(0), pl.program_id(1), pl.program_id(2)
  own = row * copies + pl.program_id(0)
  width = out_ref.shape[-1]
  at_kv = jnp.arange(pl.next_power_of_2(width))
  real_kv = at_kv < width
  query = scale * triton.load(refs["query"].at[own, head, at_kv], mask=real_kv, other=0.0).astype(jnp.float32)

  def read(keys_values, row, which, places, inside):
    mask = inside[:, None] & real_kv[None, :]
    at = keys_values.at[row, which, head, places[:, None], at_kv[None, :]]
    return triton.load(at, mask=mask, other=0.0).astype(jnp.float32)

  def attend(keys_values, row, newest, count, valid_ref, number, state):
    highest, total, out = state
    places = number * _BLOCK + jnp.arange(_BLOCK)
    inside = places < count
    if valid_ref is not None:
      inside = triton.load(valid_ref.at[row, places], mask=inside, other=0) != 0
    scores = jnp.sum(read(keys_values, row, 0, places, inside) * query[None, :], axis=1)
    if "bias" in refs:
      scores += triton.load(refs["bias"].at[head, newest - places], mask=inside, other=0.0)
    scores = jnp.where(inside, scores, _MASKED)
    above = jnp.maximum(highest, jnp.max(scores))
    weights = jnp.where(inside, jnp.exp(scores - above), 0.0)
    shrink = jnp.exp(highest - above)
    seen = jnp.sum(weights[:, None] * read(keys_values, row, 1, places, inside), axis=0)
    return above, shrink * total + jnp.sum(weights), shrink * out + seen

  state = jnp.float32(_MASKED), jnp.float32(0.0), jnp.zeros(at_kv.shape, jnp.float32)
  if "fixed" in refs:
    count = refs["reach"][row]
    newest = refs["index"][own] if "bias" in refs else None
    block = functools.partial(attend, refs["fixed"], row, newest, count, refs["valid"])
    state = jax.lax.fori_loop(0, pl.cdiv(count, _BLOCK), block, state)
  if "grown" in refs:
    last = refs["last"][0]
    block = functools.partial(attend, refs["grown"], own, last, last + 1, None)
    state = jax.lax.fori_loop(0, pl.cdiv(last + 1, _BLOCK), block, state)
  _, total, out = state
  out = out / jnp.maximum(total, 1e-30)
  triton.store(out_ref.at[own, head, at_kv], out.astype(out_ref.dtype), mask=real_kv)
