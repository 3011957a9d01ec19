"""Masks in the GPU's attention kernels: which tiles a block visits, and which scores it masks.

A mask is nothing, one length per row, or codes (masks.Codes) with the range of tiles visible to each block.
Loops run at least once, and tiles that need masking come first: if a loop may be empty, or follows another of unknown
length, NVIDIA's assembler does not overlap matrix products.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.attention.masks import Codes, Mask, mask_codes, visible
from t5like.kernels.gpu.tiles import Blocks, KernelSpec, load_vector

_LARGE = jnp.iinfo(jnp.int32).max


def encode_mask(mask: Mask, batch: int, query_length: int, key_length: int) -> tuple[Codes | None, jax.Array | None]:
  """Returns (codes, lengths [batch]), one of which is None: lengths if they suffice, else codes if needed."""
  codes = mask_codes(mask, batch, query_length, key_length)
  if codes is None and (mask.window is not None or (mask.causal and query_length != key_length)):
    codes = Codes(jnp.zeros((batch, query_length), jnp.int32), jnp.zeros((batch, key_length), jnp.int32))
  if codes is None or mask.causal or mask.window or mask.query_segments is not None or not mask.right_padded:
    return codes, None
  return None, jnp.sum(mask.key_valid.astype(bool), axis=1, dtype=jnp.int32)


def mask_operands(
  codes: Codes | None, lengths: jax.Array | None, spec: KernelSpec, blocks: Blocks, by_key: bool = False
):
  """Returns the operands of `KernelMask` and their specs, for a grid (block, head, row)."""
  if lengths is not None:
    return [lengths], [pl.BlockSpec(lengths.shape, lambda i, h, b: (0,))]
  if codes is None:
    return [], []
  overlap = _overlaps(codes, spec, blocks)
  operands = [codes.query, codes.key, _block_ranges(overlap.swapaxes(1, 2) if by_key else overlap)]
  return operands, [pl.BlockSpec((None, x.shape[1]), lambda i, h, b: (b, 0)) for x in operands]


def _overlaps(codes: Codes, spec: KernelSpec, blocks: Blocks) -> jax.Array:
  """Returns whether the segment ranges of two blocks overlap, within the window: [batch, query blocks, key blocks]."""
  least = jnp.min(jnp.where(codes.key >= 0, codes.key, _LARGE), axis=1, keepdims=True)
  # Queries of a segment without keys (padding) see nothing.
  query_low, query_high = _segment_range(jnp.where(codes.query >> 1 >= least >> 1, codes.query, -2), blocks.query)
  key_low, key_high = _segment_range(codes.key, blocks.key)
  overlap = (query_low[:, :, None] <= key_high[:, None, :]) & (key_low[:, None, :] <= query_high[:, :, None])
  i, j = jnp.arange(overlap.shape[1])[:, None], jnp.arange(overlap.shape[2])[None, :]
  ahead = j * blocks.key - i * blocks.query  # [query blocks, key blocks], from first query to first key
  if spec.causal and not spec.has_prefix:
    overlap = overlap & (ahead < blocks.query)[None]
  if spec.window is not None:
    overlap = overlap & ((ahead < spec.window + blocks.query - 1) & (-ahead < spec.window + blocks.key - 1))[None]
  return overlap


def _segment_range(code: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
  """Returns the smallest and the largest segment in each block; an empty range for a block without segments."""
  code = jnp.pad(code, ((0, 0), (0, -code.shape[1] % block)), constant_values=-2).reshape(code.shape[0], -1, block)
  return jnp.min(jnp.where(code >= 0, code >> 1, _LARGE), axis=2), jnp.max(code >> 1, axis=2)


def _block_ranges(overlap: jax.Array) -> jax.Array:
  """Reduces [batch, blocks, other blocks] to [batch, 2 * blocks]: first overlapping block, and count up to the last."""
  first = jnp.argmax(overlap, axis=2)
  last = overlap.shape[2] - jnp.argmax(overlap[:, :, ::-1], axis=2)
  count = jnp.where(jnp.any(overlap, axis=2), last - first, 0)
  return jnp.stack([first, count], axis=2).astype(jnp.int32).reshape(overlap.shape[0], -1)


@dataclasses.dataclass(frozen=True)
class KernelMask:
  """A mask inside a kernel: refs of its operands, or the length of the program's row."""

  refs: list
  spec: KernelSpec
  blocks: Blocks
  length: jax.Array | None

  @classmethod
  def from_refs(cls, refs: list, spec: KernelSpec, blocks: Blocks) -> "KernelMask":
    by_length = len(refs) == 1
    return cls(refs, spec, blocks, triton.load(refs[0].at[pl.program_id(2)]) if by_length else None)

  def query_codes(self, i):
    """Returns the codes of query block i; None without codes."""
    return load_vector(self.refs[0], self._at_query(i), 0, self.blocks) if len(self.refs) == 3 else None

  def key_codes(self, j):
    return load_vector(self.refs[1], self._at_key(j), -2, self.blocks) if len(self.refs) == 3 else None

  def _at_query(self, i):
    return i * self.blocks.query + jnp.arange(self.blocks.query)

  def _at_key(self, j):
    return j * self.blocks.key + jnp.arange(self.blocks.key)

  def over_keys(self, i, visit: Callable, start):
    """Calls `visit(j, carry, masked)` for the key blocks visible to query block i."""
    spec, (rows, columns) = self.spec, (self.blocks.query, self.blocks.key)
    count = pl.cdiv(spec.key_length, columns)
    if self.length is not None:
      last = jnp.maximum(pl.cdiv(self.length, columns) - 1, 0)
      carry = jax.lax.fori_loop(last, last + 1, lambda j, carry: visit(j, carry, True), start)
      return jax.lax.fori_loop(0, last, lambda j, carry: visit(j, carry, False), carry)
    if self.refs:
      return self._over_range(i, visit, start)
    if not spec.causal:
      masked = spec.key_length % columns != 0
      return jax.lax.fori_loop(0, count, lambda j, carry: visit(j, carry, masked), start)
    below = i * rows // columns
    carry = jax.lax.fori_loop(0, max(1, rows // columns), lambda t, carry: visit(below + t, carry, True), start)
    return jax.lax.fori_loop(0, below, lambda j, carry: visit(j, carry, False), carry)

  def over_queries(self, j, visit: Callable, start):
    """Visits the blocks of queries that may see block j of keys: `visit(i, carry, masked)`."""
    spec, (rows, columns) = self.spec, (self.blocks.query, self.blocks.key)
    count = pl.cdiv(spec.query_length, rows)
    if self.length is not None:
      # Gradients of keys beyond the length are zeroed at the end.
      count = jnp.where(j * columns < self.length, jnp.int32(count), jnp.int32(1))
      return jax.lax.fori_loop(0, count, lambda i, carry: visit(i, carry, False), start)
    if self.refs:
      return self._over_range(j, visit, start)
    if not spec.causal:
      return jax.lax.fori_loop(0, count, lambda i, carry: visit(i, carry, False), start)
    first, crossing = j * columns // rows, max(1, columns // rows)
    carry = jax.lax.fori_loop(0, crossing, lambda t, carry: visit(first + t, carry, True), start)
    return jax.lax.fori_loop(first + crossing, count, lambda i, carry: visit(i, carry, False), carry)

  def _over_range(self, block, visit: Callable, start):
    first, count = (triton.load(self.refs[2].at[2 * block + k]) for k in (0, 1))
    return jax.lax.fori_loop(0, jnp.maximum(count, 1), lambda t, carry: visit(first + t, carry, True), start)

  def hide(self, s: jax.Array, i, j, query_code, key_code, by_key: bool = False) -> jax.Array:
    """Sets masked scores of tile (i, j) to -inf: [query, key], or [key, query] with `by_key`."""
    expand = lambda x, axis: x[:, None] if (axis == 0) != by_key else x[None, :]  # noqa: E731
    at_query, at_key = expand(self._at_query(i), 0), expand(self._at_key(j), 1)
    if query_code is not None:
      query_code, key_code = expand(query_code, 0), expand(key_code, 1)
    allowed = visible(at_query, at_key, query_code, key_code, self.spec.causal, self.spec.window)
    if allowed is None:
      allowed = at_key < (self.spec.key_length if self.length is None else self.length)
    return jnp.where(allowed, s, -jnp.inf)

  def zero_beyond_length(self, at_key: jax.Array, rows: jax.Array) -> jax.Array:
    """Zeroes the gradients of keys beyond the row's length."""
    return rows if self.length is None else jnp.where((at_key < self.length)[:, None], rows, 0.0)
