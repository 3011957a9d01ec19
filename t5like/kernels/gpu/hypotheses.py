"""Cached attention of several hypotheses per row, for GPUs: a program per row of the batch and head.

A program reads every key once, for all hypotheses of its row, and multiplies on tensor cores. Of the generated part it
reads what all of them have written, and masks what is not in a hypothesis's past.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.attention.residuals import kv_head
from t5like.kernels.gpu.cached_attention import MASKED, call, query_heads

# The fastest on an H200 for T5 base with four beams. Over 512 shared keys it reads 3.7 TB/s; a copy moves 4.2.
_BLOCK = 64
_SHARED, _GENERATED = (2, 2), (2, 1)  # warps and stages of attention to a shared part alone, and to the generated part
_LEAST = 16  # the smallest side of a product on tensor cores


def attend_per_batch_row(operands: dict[str, jax.Array], batch: int, scale: float, interpret: bool) -> list[jax.Array]:
  """Runs one program per batch row and head. `operands` are those of attention/cached.py, by name."""
  heads = query_heads(operands)
  resources = _GENERATED if "generated" in operands else _SHARED
  return call(_hypotheses_kernel, operands, (heads, batch), scale, *resources, interpret)


def _hypotheses_kernel(*refs, names: tuple[str, ...], scale: float):
  """Attends to blocks of shared keys, blocks of generated keys, and each hypothesis's own token."""
  outputs, refs = refs[len(names) :], dict(zip(names, refs[: len(names)], strict=True))
  rows, heads, width = outputs[0].shape
  kv_heads = refs["generated" if "generated" in refs else "shared"].shape[2]
  head, batch_row = pl.program_id(0), pl.program_id(1)
  own = kv_head(head, heads // kv_heads)
  hypotheses = rows // pl.num_programs(1)
  first = batch_row * hypotheses
  n = jnp.arange(max(pl.next_power_of_2(hypotheses), _LEAST))
  at_kv = jnp.arange(max(pl.next_power_of_2(width), _LEAST))
  inside = (n < hypotheses)[:, None] & (at_kv < width)[None, :]
  dtype = refs["new"].dtype

  def newest(at):
    return triton.load(refs["new"].at[first + n[:, None], at, at_kv[None, :]], mask=inside, other=0.0)

  def product(a, b):
    # Without this, float32 would be rounded to 10 bits.
    return triton.dot(a, b, precision=jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None)

  query = newest(head)

  def attend_block(state, part, row, positions, inside, back, readable):
    """Attends to the keys at `positions` of a row, or of a row each; position p is `back - p` before the token."""
    highest, total, out = state
    mask = inside[:, None] & (at_kv < width)[None, :]
    at = (part.at[row, which, own, positions[:, None], at_kv[None, :]] for which in (0, 1))
    keys, values = (triton.load(ref, mask=mask, other=0.0) for ref in at)
    scores = scale * product(query, keys.T)
    if "bias" in refs:
      bias = triton.load(refs["bias"].at[head, back - positions], mask=inside, other=0.0)
      scores += bias[None, :]
    scores = jnp.where(readable, scores, MASKED)
    above = jnp.maximum(highest, jnp.max(scores, axis=1))
    weights = jnp.where(readable, jnp.exp(scores - above[:, None]), 0.0)
    shrink = jnp.exp(highest - above)
    out = shrink[:, None] * out + product(weights.astype(dtype), values)
    return above, shrink * total + jnp.sum(weights, axis=1), out

  def attend_shared(block, state):
    positions = block * _BLOCK + jnp.arange(_BLOCK)
    inside = positions < shared
    valid = triton.load(refs["valid"].at[batch_row, positions], mask=inside, other=0) != 0
    readable = jnp.broadcast_to(valid[None, :], (len(n), _BLOCK))
    back = refs["index"][first] if "bias" in refs else None
    return attend_block(state, refs["shared"], batch_row, positions, inside, back, readable)

  def attend_generated(block, state):
    index = block * _BLOCK + jnp.arange(_BLOCK)  # of all positions of the first hypothesis, then of the second, ...
    writer, positions = jax.lax.div(index, span), oldest + jax.lax.rem(index, span)
    inside = index < hypotheses * span
    own = (n < hypotheses)[:, None] & inside[None, :]
    origins = triton.load(refs["origins"].at[batch_row, n[:, None], positions[None, :]], mask=own, other=-1)
    rows = (first + writer)[:, None]
    return attend_block(state, refs["generated"], rows, positions, inside, position, origins == writer[None, :])

  none = jnp.zeros(n.shape, jnp.float32)
  state = none + MASKED, none, jnp.zeros((len(n), len(at_kv)), jnp.float32)
  if "shared" in refs:
    shared = refs["lengths"][batch_row]
    state = jax.lax.fori_loop(0, pl.cdiv(shared, _BLOCK), attend_shared, state)
  if "generated" in refs:
    position = refs["position"][0]
    oldest = refs["first"][0] if "first" in refs else 0
    span = position - oldest
    state = jax.lax.fori_loop(0, pl.cdiv(hypotheses * span, _BLOCK), attend_generated, state)
  highest, total, out = state
  if "generated" in refs:
    key, value = newest(heads + own), newest(heads + kv_heads + own)
    score = scale * jnp.sum(query.astype(jnp.float32) * key.astype(jnp.float32), axis=1)
    if "bias" in refs:
      score += refs["bias"][head, 0]
    top = jnp.maximum(highest, score)
    shrink, weight = jnp.exp(highest - top), jnp.exp(score - top)
    total = shrink * total + weight
    out = shrink[:, None] * out + weight[:, None] * value.astype(jnp.float32)
    for which, x in enumerate((key, value)):  # all programs of a group write the same
      at = outputs[1].at[first + n[:, None], which, own, position, at_kv[None, :]]
      triton.store(at, x.astype(outputs[1].dtype), mask=inside)
  out = out / jnp.maximum(total, 1e-30)[:, None]
  triton.store(outputs[0].at[first + n[:, None], head, at_kv[None, :]], out.astype(outputs[0].dtype), mask=inside)
