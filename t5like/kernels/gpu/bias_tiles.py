"""T5's bias inside a GPU kernel: the few tiles of [query, key] that differ, and sums of score gradients by distance.

A tile's entry depends on `key - query` alone, and beyond the last bucket's edge on nothing at all. So all tiles of a
matrix are among a handful, which stay in the first level cache while a multiprocessor works at a head.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton

from t5like.kernels.attention.relative_bias import RelativeBias, bias_of, bucket_edges, relative_buckets

# Score gradients are first summed within groups of so many queries and keys.
GROUP = 8


@dataclasses.dataclass(frozen=True)
class Reach:
  """How a table of biases is read, and from which distance on it holds one value a side."""

  buckets: int
  bidirectional: bool
  max_distance: int
  edge: int

  @classmethod
  def of(cls, bias: RelativeBias) -> "Reach":
    buckets = bias.table.shape[0]
    edges = bucket_edges(buckets // 2 if bias.bidirectional else buckets, bias.max_distance)
    return cls(buckets, bias.bidirectional, bias.max_distance, int(edges[-1]))

  def bias(self, table: jax.Array) -> RelativeBias:
    return RelativeBias(table, self.bidirectional, self.max_distance)

  @property
  def groups(self) -> int:
    """Groups of keys from a query's own to the first one wholly beyond the edge."""
    return -(-(self.edge + GROUP - 1) // GROUP)

  @property
  def columns(self) -> int:
    """Distances in groups, both sides, as a power of 2."""
    return max(16, 1 << (2 * self.groups).bit_length())

  def tile_counts(self, rows: int, columns: int) -> tuple[int, int]:
    """Tiles that differ to the left and to the right of the one at the diagonal, in steps of the smaller side."""
    step = min(rows, columns)
    return -(-(self.edge + columns - 1) // step), -(-(self.edge + rows - 1) // step)


def bias_tiles(table: jax.Array, reach: Reach, rows: int, columns: int, sign: int, dtype) -> jax.Array:
  """[heads, tiles, rows, columns], times log2(e): entry (r, c) of tile t has column - row = step * (t - left) + c - r.

  Rows are queries and columns keys where `sign` is 1, the other way round where it is -1.
  """
  left, right = reach.tile_counts(rows, columns)
  strip = bias_of(reach.bias(table), sign * jnp.arange(-reach.edge, reach.edge + 1)).T * math.log2(math.e)
  at = min(rows, columns) * np.arange(-left, right + 1)[:, None, None] + np.arange(columns) - np.arange(rows)[:, None]
  return jnp.take(strip, np.clip(at, -reach.edge, reach.edge) + reach.edge, axis=1).astype(dtype)


def which_tile(reach: Reach, rows: int, columns: int, i: jax.Array, j: jax.Array) -> jax.Array:
  """Index among the tiles that differ, of block row i and block column j."""
  left, right = reach.tile_counts(rows, columns)
  step = min(rows, columns)
  return jnp.clip(j * (columns // step) - i * (rows // step), -left, right) + left


def distance_tiles(reach: Reach, rows: int, columns: int) -> np.ndarray:
  """[tiles, pairs of groups, distances of groups]: 1 where a pair of groups in a tile is so far apart."""
  left, right = reach.tile_counts(rows, columns)
  a, b = rows // GROUP, columns // GROUP
  tile, pair = np.arange(-left, right + 1)[:, None], np.arange(a * b)
  apart = tile * (min(rows, columns) // GROUP) + pair % b - pair // b
  apart = np.clip(apart, -reach.groups, reach.groups) + reach.groups
  return (apart[:, :, None] == np.arange(reach.columns)).astype(np.float32)


def add_by_distance(total: jax.Array, of_scores: jax.Array, apart: jax.Array) -> jax.Array:
  """Adds a tile's score gradients to `total` [GROUP * GROUP, columns]: by place in a group, distance of groups.

  A sum along diagonals as one small matrix product with zeros and ones (`apart`, of distance_tiles): exact, and the
  tile's own rounding to bfloat16 is that of the product for the query's gradient.
  """
  rows, columns = of_scores.shape
  a, b = rows // GROUP, columns // GROUP
  grouped = of_scores.reshape(a, GROUP, b, GROUP).transpose(1, 3, 0, 2).reshape(GROUP * GROUP, a * b)
  return total + triton.dot(grouped, apart)


def fold_groups(total: jax.Array) -> jax.Array:
  """[GROUP * GROUP, columns] -> [2 * GROUP, columns]: by distance within a group, GROUP added to it."""
  place = jnp.arange(GROUP * GROUP)
  within = place % GROUP - place // GROUP + GROUP
  hot = (jnp.arange(2 * GROUP)[:, None] == within[None, :]).astype(total.dtype)
  return triton.dot(hot, total)


def table_gradient(sums: jax.Array, table: jax.Array, reach: Reach) -> jax.Array:
  """[batch, heads, blocks, 2 * GROUP, columns] -> [buckets, heads]."""
  within, apart = jnp.arange(2 * GROUP)[:, None] - GROUP, jnp.arange(reach.columns)[None, :] - reach.groups
  bucket = relative_buckets(GROUP * apart + within, reach.buckets, reach.max_distance, reach.bidirectional)
  hot = jax.nn.one_hot(bucket, reach.buckets, dtype=jnp.float32)
  by_distance = jnp.sum(sums, axis=(0, 2))
  d_table = jnp.einsum("hwa,wan->nh", by_distance, hot, precision=jax.lax.Precision.HIGHEST)
  return d_table.astype(table.dtype)
