"""T5's bias inside a GPU kernel: its distinct [query, key] tiles, and sums of score gradients by distance.

An entry of a tile depends only on `key - query`, and is constant beyond the edge of the last bucket. A matrix therefore
has only a handful of distinct tiles, which stay in the L1 cache while a multiprocessor works on a head.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton

from t5like.kernels.attention.relative_bias import RelativeBias, bias_at, bucket_edges, relative_buckets

GROUP = 8  # queries and keys per group; score gradients are first summed by pair of groups


@dataclasses.dataclass(frozen=True)
class BucketSpec:
  """The bucketing of distances in a bias table."""

  num_buckets: int
  bidirectional: bool
  max_distance: int
  edge: int  # first distance of the last bucket: the bias is constant beyond it

  @classmethod
  def from_bias(cls, bias: RelativeBias) -> "BucketSpec":
    buckets = bias.table.shape[0]
    edges = bucket_edges(buckets // 2 if bias.bidirectional else buckets, bias.max_distance)
    return cls(buckets, bias.bidirectional, bias.max_distance, int(edges[-1]))

  def bias(self, table: jax.Array) -> RelativeBias:
    return RelativeBias(table, self.bidirectional, self.max_distance)

  @property
  def groups(self) -> int:
    """Number of groups of keys from the query's own to the first entirely beyond the edge."""
    return -(-(self.edge + GROUP - 1) // GROUP)

  @property
  def columns(self) -> int:
    """Number of distances between groups, in both directions, rounded up to a power of 2."""
    return max(16, 1 << (2 * self.groups).bit_length())

  def tile_counts(self, rows: int, columns: int) -> tuple[int, int]:
    """Returns the number of distinct tiles left and right of the diagonal, in steps of the smaller side."""
    step = min(rows, columns)
    return -(-(self.edge + columns - 1) // step), -(-(self.edge + rows - 1) // step)


def bias_tiles(table: jax.Array, buckets: BucketSpec, rows: int, columns: int, sign: int, dtype) -> jax.Array:
  """Returns the distinct tiles, times log2(e): [heads, tiles, rows, columns].

  Entry (r, c) of tile t has column - row = step * (t - left) + c - r. With `sign` 1 rows are queries and columns are
  keys, with -1 the reverse.
  """
  left, right = buckets.tile_counts(rows, columns)
  strip = bias_at(buckets.bias(table), sign * jnp.arange(-buckets.edge, buckets.edge + 1)).T * math.log2(math.e)
  at = min(rows, columns) * np.arange(-left, right + 1)[:, None, None] + np.arange(columns) - np.arange(rows)[:, None]
  return jnp.take(strip, np.clip(at, -buckets.edge, buckets.edge) + buckets.edge, axis=1).astype(dtype)


@dataclasses.dataclass(frozen=True)
class RegisterOrder:
  """The order in which threads hold the result of a matrix product on a tensor core, [rows, columns].

  A warp has 16 rows: a thread two of them, 8 apart, and two of every 8 columns. A bias that is stored in this order is
  read as a vector, of which a thread takes 16 bytes at a time, and is added without moving between threads. (As a
  matrix it would move through shared memory, which takes as long as a product.) If the compiler arranges threads in
  another way, results are the same.
  """

  rows: int
  columns: int
  warps: int

  @property
  def _sizes(self) -> tuple[int, ...]:
    """Sizes of the axes that a vector has: those of registers, warp, thread, registers."""
    warps = max(1, min(self.warps, self.rows // 16))
    within = min(4, self.columns // 8)
    return self.rows // (16 * warps), 2, self.columns // (8 * within), warps, 8, 4, within, 2

  def flatten(self, tiles: jax.Array) -> jax.Array:
    """Returns [..., rows * columns] from [..., rows, columns]."""
    repeated, half, pieces, warps, row, pair, within, side = self._sizes
    first = tiles.ndim - 2
    split = tiles.reshape(*tiles.shape[:-2], repeated, warps, half, row, pieces, within, pair, side)
    moved = split.transpose(*range(first), *(first + axis for axis in (0, 2, 4, 1, 3, 6, 5, 7)))
    return moved.reshape(*tiles.shape[:-2], self.rows * self.columns)

  def unflatten(self, vector: jax.Array) -> jax.Array:
    """Returns [rows, columns] from [rows * columns], inside a kernel."""
    return vector.reshape(self._sizes).transpose(0, 3, 1, 4, 2, 6, 5, 7).reshape(self.rows, self.columns)


def tile_index(buckets: BucketSpec, rows: int, columns: int, i: jax.Array, j: jax.Array) -> jax.Array:
  """Returns the index of the distinct tile at block row i and block column j."""
  left, right = buckets.tile_counts(rows, columns)
  step = min(rows, columns)
  return jnp.clip(j * (columns // step) - i * (rows // step), -left, right) + left


def is_near(buckets: BucketSpec, rows: int, columns: int, tile: jax.Array) -> jax.Array:
  """Returns whether entries of a tile differ: those of the first and of the last are beyond the edge."""
  return (0 < tile) & (tile < sum(buckets.tile_counts(rows, columns)))


def distance_tiles(buckets: BucketSpec, rows: int, columns: int) -> np.ndarray:
  """Returns one-hot distances between groups: [tiles, pairs of groups, distances]."""
  left, right = buckets.tile_counts(rows, columns)
  a, b = rows // GROUP, columns // GROUP
  tile, pair = np.arange(-left, right + 1)[:, None], np.arange(a * b)
  apart = tile * (min(rows, columns) // GROUP) + pair % b - pair // b
  apart = np.clip(apart, -buckets.groups, buckets.groups) + buckets.groups
  return (apart[:, :, None] == np.arange(buckets.columns)).astype(np.float32)


def add_by_distance(total: jax.Array, d_scores: jax.Array, apart: jax.Array) -> jax.Array:
  """Adds a tile's score gradients to `total` [GROUP * GROUP, columns], by position in a group and distance of groups.

  Sums along diagonals with one small product with a 0/1 matrix (`apart`, from distance_tiles): exact, and the tile is
  rounded to bfloat16 as for the query gradient.
  """
  rows, columns = d_scores.shape
  a, b = rows // GROUP, columns // GROUP
  grouped = d_scores.reshape(a, GROUP, b, GROUP).transpose(1, 3, 0, 2).reshape(GROUP * GROUP, a * b)
  return total + triton.dot(grouped, apart)


def fold_groups(total: jax.Array) -> jax.Array:
  """Folds [GROUP * GROUP, columns] into [2 * GROUP, columns]: row d + GROUP is for distance d within a group."""
  position = jnp.arange(GROUP * GROUP)
  within = position % GROUP - position // GROUP + GROUP
  hot = (jnp.arange(2 * GROUP)[:, None] == within[None, :]).astype(total.dtype)
  return triton.dot(hot, total)


@functools.partial(jax.jit, static_argnames="buckets")  # its constants would be arguments of a rematerialized layer
def table_gradient(sums: jax.Array, table: jax.Array, buckets: BucketSpec) -> jax.Array:
  """Sums [batch, heads, blocks, 2 * GROUP, columns] into the gradient of the table, [buckets, heads]."""
  within, apart = jnp.arange(2 * GROUP)[:, None] - GROUP, jnp.arange(buckets.columns)[None, :] - buckets.groups
  bucket = relative_buckets(GROUP * apart + within, buckets.num_buckets, buckets.max_distance, buckets.bidirectional)
  hot = jax.nn.one_hot(bucket, buckets.num_buckets, dtype=jnp.float32)
  by_distance = jnp.sum(sums, axis=(0, 2))
  d_table = jnp.einsum("hwa,wan->nh", by_distance, hot, precision=jax.lax.Precision.HIGHEST)
  return d_table.astype(table.dtype)
