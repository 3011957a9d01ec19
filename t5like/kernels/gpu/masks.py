"""Masks in the GPU's attention kernels: which tiles a block visits, and what it hides in them.

A mask comes as nothing, as a length a row, or as codes (masks.Codes) with the range of tiles that each block may see.
Loops run at least once, and tiles that need a mask come first: where a loop may be empty or follows another of unknown
length, NVIDIA's assembler gives up overlapping matrix products.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.attention.masks import Codes, Mask, mask_codes, visible
from t5like.kernels.gpu.tiles import Blocks, TileWork, load_numbers

_LARGE = jnp.iinfo(jnp.int32).max


def mask_operands(mask: Mask, batch: int, query_length: int, key_length: int) -> tuple[Codes | None, jax.Array | None]:
  """Codes, or lengths [batch] where they say it all."""
  codes = mask_codes(mask, batch, query_length, key_length)
  if codes is None and mask.causal and query_length != key_length:
    codes = Codes(jnp.zeros((batch, query_length), jnp.int32), jnp.zeros((batch, key_length), jnp.int32))
  if codes is None or mask.causal or mask.query_segments is not None or not mask.right_padded:
    return codes, None
  return None, jnp.sum(mask.key_valid.astype(bool), axis=1, dtype=jnp.int32)


def sight_operands(
  codes: Codes | None, lengths: jax.Array | None, work: TileWork, blocks: Blocks, by_key: bool = False
):
  """A kernel's operands for `Sight`, and their specs; grids are (block, head, row)."""
  if lengths is not None:
    return [lengths], [pl.BlockSpec(lengths.shape, lambda i, h, b: (0,))]
  if codes is None:
    return [], []
  meet = _meeting(codes, work, blocks)
  operands = [codes.query, codes.key, _ranges(meet.swapaxes(1, 2) if by_key else meet)]
  return operands, [pl.BlockSpec((None, x.shape[1]), lambda i, h, b: (b, 0)) for x in operands]


def _meeting(codes: Codes, work: TileWork, blocks: Blocks) -> jax.Array:
  """Whether two blocks hold segments in common, judged by the least and the greatest: [batch, queries, keys] blocks."""
  least = jnp.min(jnp.where(codes.key >= 0, codes.key, _LARGE), axis=1, keepdims=True)
  # Queries of a segment that no key is in, those of padding, see nothing.
  query_low, query_high = _ends(jnp.where(codes.query >> 1 >= least >> 1, codes.query, -2), blocks.query)
  key_low, key_high = _ends(codes.key, blocks.key)
  meet = (query_low[:, :, None] <= key_high[:, None, :]) & (key_low[:, None, :] <= query_high[:, :, None])
  if work.causal and not work.has_prefix:
    i, j = jnp.arange(meet.shape[1])[:, None], jnp.arange(meet.shape[2])[None, :]
    meet = meet & (j * blocks.key < (i + 1) * blocks.query)[None]
  return meet


def _ends(code: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
  """The least and the greatest segment in each block; an empty range where there is none."""
  code = jnp.pad(code, ((0, 0), (0, -code.shape[1] % block)), constant_values=-2).reshape(code.shape[0], -1, block)
  return jnp.min(jnp.where(code >= 0, code >> 1, _LARGE), axis=2), jnp.max(code >> 1, axis=2)


def _ranges(meet: jax.Array) -> jax.Array:
  """[batch, blocks, other blocks] -> [batch, 2 * blocks]: the first that a block meets, and how many up to the last."""
  first = jnp.argmax(meet, axis=2)
  last = meet.shape[2] - jnp.argmax(meet[:, :, ::-1], axis=2)
  count = jnp.where(jnp.any(meet, axis=2), last - first, 0)
  return jnp.stack([first, count], axis=2).astype(jnp.int32).reshape(meet.shape[0], -1)


@dataclasses.dataclass(frozen=True)
class Sight:
  """A mask inside a kernel: the refs of its operands, or the length of the program's row."""

  refs: list
  work: TileWork
  blocks: Blocks
  length: jax.Array | None

  @classmethod
  def of(cls, refs: list, work: TileWork, blocks: Blocks) -> "Sight":
    by_length = len(refs) == 1
    return cls(refs, work, blocks, triton.load(refs[0].at[pl.program_id(2)]) if by_length else None)

  def query_codes(self, i):
    """Codes of block i of queries; None without codes."""
    return load_numbers(self.refs[0], self._at_query(i), 0, self.blocks) if len(self.refs) == 3 else None

  def key_codes(self, j):
    return load_numbers(self.refs[1], self._at_key(j), -2, self.blocks) if len(self.refs) == 3 else None

  def _at_query(self, i):
    return i * self.blocks.query + jnp.arange(self.blocks.query)

  def _at_key(self, j):
    return j * self.blocks.key + jnp.arange(self.blocks.key)

  def over_keys(self, i, visit: Callable, start):
    """Visits the blocks of keys that block i of queries may see: `visit(j, carry, masked)`."""
    work, (rows, columns) = self.work, (self.blocks.query, self.blocks.key)
    count = pl.cdiv(work.key_length, columns)
    if self.length is not None:
      last = jnp.maximum(pl.cdiv(self.length, columns) - 1, 0)
      carry = jax.lax.fori_loop(last, last + 1, lambda j, carry: visit(j, carry, True), start)
      return jax.lax.fori_loop(0, last, lambda j, carry: visit(j, carry, False), carry)
    if self.refs:
      return self._over_range(i, visit, start)
    if not work.causal:
      masked = work.key_length % columns != 0
      return jax.lax.fori_loop(0, count, lambda j, carry: visit(j, carry, masked), start)
    below = i * rows // columns
    carry = jax.lax.fori_loop(0, max(1, rows // columns), lambda t, carry: visit(below + t, carry, True), start)
    return jax.lax.fori_loop(0, below, lambda j, carry: visit(j, carry, False), carry)

  def over_queries(self, j, visit: Callable, start):
    """Visits the blocks of queries that may see block j of keys: `visit(i, carry, masked)`."""
    work, (rows, columns) = self.work, (self.blocks.query, self.blocks.key)
    count = pl.cdiv(work.query_length, rows)
    if self.length is not None:
      # Keys beyond the length are sorted out at the end: a key's gradient is its own.
      count = jnp.where(j * columns < self.length, jnp.int32(count), jnp.int32(1))
      return jax.lax.fori_loop(0, count, lambda i, carry: visit(i, carry, False), start)
    if self.refs:
      return self._over_range(j, visit, start)
    if not work.causal:
      return jax.lax.fori_loop(0, count, lambda i, carry: visit(i, carry, False), start)
    first, crossing = j * columns // rows, max(1, columns // rows)
    carry = jax.lax.fori_loop(0, crossing, lambda t, carry: visit(first + t, carry, True), start)
    return jax.lax.fori_loop(first + crossing, count, lambda i, carry: visit(i, carry, False), carry)

  def _over_range(self, block, visit: Callable, start):
    first, count = (triton.load(self.refs[2].at[2 * block + k]) for k in (0, 1))
    return jax.lax.fori_loop(0, jnp.maximum(count, 1), lambda t, carry: visit(first + t, carry, True), start)

  def hide(self, s: jax.Array, i, j, query_code, key_code, by_key: bool = False) -> jax.Array:
    """-inf where a query may not look, in scores of tile (i, j): [query, key], or [key, query] with `by_key`."""
    laid = lambda x, axis: x[:, None] if (axis == 0) != by_key else x[None, :]  # noqa: E731
    at_query, at_key = laid(self._at_query(i), 0), laid(self._at_key(j), 1)
    if query_code is not None:
      query_code, key_code = laid(query_code, 0), laid(key_code, 1)
    allowed = visible(at_query, at_key, query_code, key_code, self.work.causal)
    if allowed is None:
      allowed = at_key < (self.work.key_length if self.length is None else self.length)
    return jnp.where(allowed, s, -jnp.inf)

  def own(self, at_key: jax.Array, rows: jax.Array) -> jax.Array:
    """Gradients of keys, zero for those beyond a row's length."""
    return rows if self.length is None else jnp.where((at_key < self.length)[:, None], rows, 0.0)
