"""Tiles of the GPU's attention kernels: loads and stores, scores with T5's bias, softmax weights."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.attention.residuals import kv_head
from t5like.kernels.dropout import kept
from t5like.kernels.gpu.bias_tiles import BucketSpec, RegisterOrder, bias_tiles, is_near, tile_index
from t5like.kernels.gpu.ptx import inline_ptx, literal

LOG2_E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Blocks:
  """The tile size of a kernel, its number of warps and of pipeline stages. One side divides the other."""

  query: int
  key: int
  warps: int
  stages: int
  branch_only_loads: bool = False  # add a tile's bias after the branch that loads it, not in it: whichever is faster

  @property
  def compiler_params(self) -> triton.CompilerParams:
    return triton.CompilerParams(num_warps=self.warps, num_stages=self.stages)


@dataclasses.dataclass(frozen=True)
class KernelSpec:
  """Compile-time parameters of an attention kernel."""

  query_length: int
  key_length: int
  causal: bool
  has_prefix: bool
  window: int | None
  group: int  # heads of queries that read one head of keys
  scale: float  # positive
  buckets: BucketSpec | None  # of T5's bias; None: another or none
  alibi: bool
  dropout_rate: float  # 0.0: no dropout
  interpret: bool

  @property
  def log2_scale(self) -> float:
    """The factor that converts scores to base-2 logarithms; scores with a bias already are."""
    return self.scale * LOG2_E if self.buckets is None else 1.0

  @property
  def dropout_scale(self) -> float:
    return 1.0 / (1.0 - self.dropout_rate)

  @property
  def bits_specs(self) -> list[pl.BlockSpec]:
    """The specs of the bits of a dropout mask, for queries and for keys."""
    lengths = (self.query_length, self.key_length) if self.dropout_rate else ()
    return [pl.BlockSpec((None, None, length), lambda i, h, b: (b, h, 0)) for length in lengths]

  def specs(self, width: int) -> tuple[pl.BlockSpec, pl.BlockSpec]:
    """Returns specs of all queries, and of one number per query, of a row and head; grid (block, head, row)."""
    return (
      pl.BlockSpec((None, self.query_length, None, width), lambda i, h, b: (b, 0, h, 0)),
      pl.BlockSpec((None, None, self.query_length), lambda i, h, b: (b, h, 0)),
    )

  def projections(
    self, query: jax.Array, key: jax.Array | None, value: jax.Array | None
  ) -> tuple[list[jax.Array], list[pl.BlockSpec]]:
    """Returns queries, keys and values with their specs; the last array that is given holds those that are not."""
    *apart, last = (x for x in (query, key, value) if x is not None)
    joined = 3 - len(apart)
    parts = [None] * len(apart) + ([None] if joined == 1 else list(range(joined)))

    def spec(length: int, group: int, part: int | None) -> pl.BlockSpec:
      at = () if part is None else (part,)
      shape = (None, length, *(None for _ in at), None, query.shape[-1])
      return pl.BlockSpec(shape, lambda i, h, b: (b, 0, *at, kv_head(h, group), 0))

    sizes = (self.query_length, 1), (self.key_length, self.group), (self.key_length, self.group)
    return [*apart, *[last] * joined], [spec(*size, part) for size, part in zip(sizes, parts, strict=True)]

  def bias_operands(self, table: jax.Array | None, blocks: Blocks, dtype, by_key: bool = False):
    """Returns the distinct bias tiles of a head, or ALiBi's slopes in units of unscaled scores, and their spec."""
    if table is None:
      return [], []
    if self.alibi:
      return [table.reshape(-1) / self.scale], [pl.BlockSpec((1,), lambda i, h, b: (h,))]
    shape = (blocks.key, blocks.query, -1) if by_key else (blocks.query, blocks.key, 1)
    tiles = bias_tiles(table, self.buckets, *shape, dtype)
    tiles = RegisterOrder(*shape[:2], blocks.warps).flatten(tiles)
    return [tiles], [pl.BlockSpec((None, *tiles.shape[1:]), lambda i, h, b: (h, 0, 0))]


@dataclasses.dataclass(frozen=True)
class TileDropout:
  """Dropout inside a kernel: refs of the bits of queries and keys, none without dropout."""

  refs: list
  spec: KernelSpec
  blocks: Blocks

  def query_bits(self, at: jax.Array) -> jax.Array | None:
    return load_vector(self.refs[0], at, 0, self.blocks) if self.refs else None

  def key_bits(self, at: jax.Array) -> jax.Array | None:
    return load_vector(self.refs[1], at, 0, self.blocks) if self.refs else None

  def drop(self, tile: jax.Array, row_bits: jax.Array | None, column_bits: jax.Array | None) -> jax.Array:
    """Zeroes the dropped entries of a tile; does not scale the others."""
    if row_bits is None:
      return tile
    return jnp.where(kept(row_bits[:, None], column_bits[None, :], self.spec.dropout_rate), tile, 0.0)


def load_rows(ref, at: jax.Array, blocks: Blocks) -> jax.Array:
  """Loads rows `at` of [length, kv], zeros beyond the end."""
  length, width = ref.shape
  index = at[:, None], jnp.arange(width)[None, :]
  if length % max(blocks.query, blocks.key) == 0:
    return triton.load(ref.at[*index])
  inside = jnp.broadcast_to((at < length)[:, None], (at.shape[0], width))
  return triton.load(ref.at[*index], mask=inside, other=0.0)


def load_vector(ref, at: jax.Array, fill: float | int, blocks: Blocks) -> jax.Array:
  """Loads entries `at` of [length], `fill` beyond the end."""
  (length,) = ref.shape
  if length % max(blocks.query, blocks.key) == 0:
    return triton.load(ref.at[at])
  return triton.load(ref.at[at], mask=at < length, other=fill)


def load_tile(ref, buckets: BucketSpec, shape: tuple[int, int], i: jax.Array, j: jax.Array) -> jax.Array:
  """Loads the entry of a tile of `shape` at block row i, column j, from an array with one entry per distinct tile."""
  _, rows, columns = ref.shape
  return triton.load(ref.at[tile_index(buckets, *shape, i, j), jnp.arange(rows)[:, None], jnp.arange(columns)[None, :]])


def store_rows(ref, at: jax.Array, rows: jax.Array, part: int | None = None) -> None:
  """Stores rows `at` of [length, kv], or of a part of [length, parts, kv], up to the end."""
  inside = jnp.broadcast_to((at < ref.shape[0])[:, None], rows.shape)
  index = at[:, None], *(() if part is None else (part,)), jnp.arange(ref.shape[-1])[None, :]
  triton.store(ref.at[*index], rows.astype(ref.dtype), mask=inside)


def scores(
  query: jax.Array, key: jax.Array, tiles_ref, i, j, spec: KernelSpec, blocks: Blocks, by_key: bool = False
) -> jax.Array:
  """Computes scores of tile (i, j): [query, key], or [key, query] with `by_key`; times log2_scale they are base 2."""
  first, second = (key, query) if by_key else (query, key)
  s = triton.dot(first, second.T)
  if tiles_ref is None:
    return s
  if spec.alibi:
    at = [block * size + jnp.arange(size) for block, size in zip((j, i) if by_key else (i, j), s.shape, strict=True)]
    return s - tiles_ref[0] * jnp.abs(at[0][:, None] - at[1][None, :]).astype(jnp.float32)
  tile = tile_index(spec.buckets, *s.shape, *((j, i) if by_key else (i, j)))
  add = functools.partial(_add_scaled, s, spec.scale * LOG2_E, interpret=spec.interpret)
  order = RegisterOrder(*s.shape, blocks.warps)
  load = lambda: order.unflatten(triton.load(tiles_ref.at[tile, jnp.arange(s.size)]))  # noqa: E731
  corner = tiles_ref[tile, 0]
  # In branches, tiles are not prefetched into shared memory, for which fewer programs would run at a time.
  near = is_near(spec.buckets, *s.shape, tile)
  if blocks.branch_only_loads:
    return add(jax.lax.cond(near, load, lambda: jnp.broadcast_to(corner, s.shape)))
  return jax.lax.cond(near, lambda: add(load()), lambda: add(jnp.broadcast_to(corner.astype(jnp.float32), s.shape)))


def _add_scaled(s: jax.Array, factor: float, bias: jax.Array, *, interpret: bool) -> jax.Array:
  """Computes factor * s + bias with inline assembly: XLA's Triton would emit more instructions."""
  if interpret:
    return factor * s + bias.astype(jnp.float32)
  if bias.dtype != jnp.bfloat16:
    fma = f"fma.rn.f32 $0, $1, {literal(factor)}, $2;"
    return inline_ptx(fma, "=f,f,f", [s, bias.astype(jnp.float32)])
  # A 32-bit register holds two biases.
  return inline_ptx(
    "{ .reg .b32 low, high; shl.b32 low, $4, 16; and.b32 high, $4, 0xffff0000;"
    f" fma.rn.f32 $0, $2, {literal(factor)}, low; fma.rn.f32 $1, $3, {literal(factor)}, high; }}",
    "=f,=f,f,f,r", [s, bias], pack=2,
  )  # fmt: skip


def softmax_weights(s: jax.Array, shift: jax.Array, spec: KernelSpec) -> jax.Array:
  """Computes 2 ** (log2_scale * s - shift) with inline assembly.

  XLA's Triton would emit separate multiplications and subtractions and handle results below 2 ** -126, at a third of
  the forward pass's time.
  """
  shift = jnp.broadcast_to(shift, s.shape)
  if spec.interpret:
    return jnp.exp2(spec.log2_scale * s - shift)
  if spec.buckets is not None:
    return inline_ptx("ex2.approx.ftz.f32 $0, $1;", "=f,f", [s - shift])
  return inline_ptx(
    f"{{ .reg .f32 x, y; neg.f32 y, $2; fma.rn.f32 x, $1, {literal(spec.log2_scale)}, y; ex2.approx.ftz.f32 $0, x; }}",
    "=f,f,f", [s, shift],
  )  # fmt: skip
