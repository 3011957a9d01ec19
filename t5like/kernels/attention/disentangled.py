"""DeBERTa's disentangled attention (He et al. 2020): scores that depend on contents and on their distance.

    q_i . k_j  +  q_i . K[c(i - j)]  +  k_j . Q[c(i - j)]

K and Q are projections of a table of relative positions, c the row of a distance. It depends on i - j alone, so no
index is computed for pairs: a one-hot product copies rows of the table to distances, states are multiplied with them,
and a shift moves each result to its key.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from t5like.kernels.attention.masks import static
from t5like.kernels.products import product


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Disentangled:
  """A layer's projections of the table of relative positions, both [2 buckets, heads, kv].

  max_distance  distances from half of the buckets up to this one share the other half, on a log scale; if it equals the
                number of buckets, every distance has its own
  """

  query: jax.Array
  key: jax.Array
  max_distance: int = static(512)

  @property
  def buckets(self) -> int:
    return self.key.shape[0] // 2


def table_rows(distances: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
  """Returns the row of the table [2 buckets] for each distance `query index - key index`."""
  half, sizes = buckets // 2, np.abs(distances)
  if buckets < max_distance:
    far = np.log(np.maximum(sizes, half) / half) / math.log((max_distance - 1) / half) * (half - 1)
    # The tolerance keeps exact integers from being rounded up.
    sizes = np.where(sizes <= half, sizes, half + np.ceil(far - 1e-6).astype(sizes.dtype))
  return np.clip(np.sign(distances) * sizes + buckets, 0, 2 * buckets - 1)


def disentangled_scores(query: jax.Array, key: jax.Array, table: Disentangled) -> jax.Array:
  """Returns both terms of positions, [batch, heads, length, length] float32, of states [batch, length, heads, kv]."""
  length = query.shape[1]
  ahead = np.arange(2 * length) - (length - 1)  # of a row's own position; the last one is not used
  by_key = product("bqhd,thd->bhqt", query, _at(table.key, -ahead, table), jnp.float32)
  by_query = product("bkhd,thd->bhkt", key, _at(table.query, ahead, table), jnp.float32)
  return shift(by_key) + jnp.swapaxes(shift(by_query), 2, 3)


def _at(projected: jax.Array, distances: np.ndarray, table: Disentangled) -> jax.Array:
  """Returns [distances, heads, kv]: rows of a projected table."""
  rows = table_rows(distances, table.buckets, table.max_distance)
  hot = jnp.asarray(rows[:, None] == np.arange(2 * table.buckets)[None], projected.dtype)
  return jnp.einsum("tn,nhd->thd", hot, projected, precision=jax.lax.Precision.HIGHEST)


def shift(x: jax.Array) -> jax.Array:
  """Returns y[..., i, j] = x[..., i, j - i + n - 1] of x [..., n, n + m]: [..., n, m].

  Reading rows of n + m as rows of n + m - 1, from entry n - 1 on, shifts row i left by i: no index is computed.
  """
  *batch, n, wide = x.shape
  flat = x.reshape(*batch, n * wide)[..., n - 1 : n - 1 + n * (wide - 1)]
  return flat.reshape(*batch, n, wide - 1)[..., : wide - n]
