"""Tiles of the GPU's attention kernels: reading them, their scores with T5's bias, and the weights."""

import dataclasses
import math
import struct

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.gpu.bias_tiles import Reach, bias_tiles, which_tile

LOG2_E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Blocks:
  """A kernel's tile, the warps that share it, and how many tiles are read ahead. One side divides the other."""

  query: int
  key: int
  warps: int
  stages: int

  @property
  def compiler_params(self) -> triton.CompilerParams:
    return triton.CompilerParams(num_warps=self.warps, num_stages=self.stages)


@dataclasses.dataclass(frozen=True)
class TileWork:
  """What a kernel is compiled for."""

  query_length: int
  key_length: int
  causal: bool
  has_prefix: bool
  scale: float  # more than 0
  reach: Reach | None  # None: no bias
  interpret: bool

  @property
  def unit(self) -> float:
    """What scores are multiplied with to be in units of log 2; those with a bias already are."""
    return self.scale * LOG2_E if self.reach is None else 1.0

  def specs(self, width: int) -> tuple[pl.BlockSpec, pl.BlockSpec, pl.BlockSpec]:
    """All queries, all keys, and a number a query, of a row and a head; grids are (block, head, row)."""
    at = lambda i, h, b: (b, 0, h, 0)  # noqa: E731
    return (
      pl.BlockSpec((None, self.query_length, None, width), at),
      pl.BlockSpec((None, self.key_length, None, width), at),
      pl.BlockSpec((None, None, self.query_length), lambda i, h, b: (b, h, 0)),
    )

  def bias_operands(self, table: jax.Array | None, blocks: Blocks, dtype, by_key: bool = False):
    """The bias tiles that differ and their spec, of a head."""
    if table is None:
      return [], []
    shape = (blocks.key, blocks.query, -1) if by_key else (blocks.query, blocks.key, 1)
    tiles = bias_tiles(table, self.reach, *shape, dtype)
    return [tiles], [pl.BlockSpec((None, *tiles.shape[1:]), lambda i, h, b: (h, 0, 0, 0))]


def load_rows(ref, at: jax.Array, blocks: Blocks) -> jax.Array:
  """Rows `at` of [length, kv], zeros beyond the end."""
  length, width = ref.shape
  index = at[:, None], jnp.arange(width)[None, :]
  if length % max(blocks.query, blocks.key) == 0:
    return triton.load(ref.at[*index])
  inside = jnp.broadcast_to((at < length)[:, None], (at.shape[0], width))
  return triton.load(ref.at[*index], mask=inside, other=0.0)


def load_numbers(ref, at: jax.Array, beyond: float | int, blocks: Blocks) -> jax.Array:
  """Entries `at` of [length], `beyond` beyond the end."""
  (length,) = ref.shape
  if length % max(blocks.query, blocks.key) == 0:
    return triton.load(ref.at[at])
  return triton.load(ref.at[at], mask=at < length, other=beyond)


def load_tile(ref, reach: Reach, shape: tuple[int, int], i: jax.Array, j: jax.Array) -> jax.Array:
  """Of an array with one entry for every tile that differs, the one for a tile of `shape` at block row i, column j."""
  _, rows, columns = ref.shape
  return triton.load(ref.at[which_tile(reach, *shape, i, j), jnp.arange(rows)[:, None], jnp.arange(columns)[None, :]])


def store_rows(ref, at: jax.Array, rows: jax.Array) -> None:
  inside = jnp.broadcast_to((at < ref.shape[0])[:, None], rows.shape)
  triton.store(ref.at[at[:, None], jnp.arange(ref.shape[1])[None, :]], rows.astype(ref.dtype), mask=inside)


def scores(query: jax.Array, key: jax.Array, tiles_ref, i, j, work: TileWork, by_key: bool = False) -> jax.Array:
  """Scores of tile (i, j), [query, key] or, with `by_key`, [key, query]; times `work.unit` in units of log 2."""
  first, second = (key, query) if by_key else (query, key)
  s = triton.dot(first, second.T)
  if tiles_ref is None:
    return s
  bias = load_tile(tiles_ref, work.reach, s.shape, *((j, i) if by_key else (i, j)))
  factor = work.scale * LOG2_E
  if work.interpret or bias.dtype != jnp.bfloat16:
    return factor * s + bias.astype(jnp.float32)
  # Two biases as they lie in a register.
  return _assembled(
    "{ .reg .b32 low, high; shl.b32 low, $4, 16; and.b32 high, $4, 0xffff0000;"
    f" fma.rn.f32 $0, $2, {_literal(factor)}, low; fma.rn.f32 $1, $3, {_literal(factor)}, high; }}",
    "=f,=f,f,f,r", 2, s, bias,
  )  # fmt: skip


def weights_of(s: jax.Array, less: jax.Array, work: TileWork) -> jax.Array:
  """2 ** (unit * s - less), in instructions that Triton in XLA does not choose by itself.

  It would multiply and subtract apart, and care for results below 2 ** -126: a third of the forward pass's time.
  """
  less = jnp.broadcast_to(less, s.shape)
  if work.interpret:
    return jnp.exp2(work.unit * s - less)
  if work.reach is not None:
    return _assembled("ex2.approx.ftz.f32 $0, $1;", "=f,f", 1, s - less)
  return _assembled(
    f"{{ .reg .f32 x, y; neg.f32 y, $2; fma.rn.f32 x, $1, {_literal(work.unit)}, y; ex2.approx.ftz.f32 $0, x; }}",
    "=f,f,f", 1, s, less,
  )  # fmt: skip


def _assembled(instructions: str, constraints: str, pack: int, x: jax.Array, *more: jax.Array) -> jax.Array:
  """Instructions for `pack` entries at a time."""
  result = [jax.ShapeDtypeStruct(x.shape, jnp.float32)]
  return triton.elementwise_inline_asm(
    instructions, args=[x, *more], constraints=constraints, pack=pack, result_shape_dtypes=result
  )[0]


def _literal(number: float) -> str:
  """A float32 as PTX writes it."""
  return f"0f{struct.unpack('<I', struct.pack('<f', number))[0]:08X}"
