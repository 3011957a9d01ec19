"""T5's relative position bias: from the table to one value per distance, and to the matrix added to the scores."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from t5like.kernels.attention.masks import static


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RelativeBias:
  """The table of T5's relative position bias (Raffel et al. 2019, section 2.1)."""

  table: jax.Array  # [buckets, heads]
  bidirectional: bool = static(True)
  max_distance: int = static(128)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Alibi:
  """A bias of -slope * distance, with a constant slope for each head (Press et al. 2021)."""

  slopes: jax.Array  # [1, heads] float32: heads are the last axis, as in a table of RelativeBias


def alibi_slopes(heads: int) -> np.ndarray:
  """Returns ALiBi's slopes [heads] float32: 2^(-8/n), 2^(-16/n), ... for n heads.

  Where n is not a power of 2, those of the next lower power come first, then every other one of twice as many.
  """
  power = 2 ** int(math.log2(heads))
  of = lambda n: [2.0 ** (-8.0 * i / n) for i in range(1, n + 1)]  # noqa: E731
  return np.array(of(power) + of(2 * power)[::2][: heads - power], np.float32)


def relative_buckets(distance: jax.Array, num_buckets: int, max_distance: int, bidirectional: bool) -> jax.Array:
  """Returns the bucket of each `key index - query index`.

  Half of the buckets hold one distance each, the rest grow logarithmically up
  to `max_distance`. Bucket edges are computed on the host in float64 and
  compared as integers: with a float32 log, distances such as 16, 32 and 64
  would fall into different buckets on different devices.
  """
  bucket = jnp.zeros_like(distance)
  if bidirectional:
    num_buckets //= 2
    bucket = jnp.where(distance > 0, num_buckets, 0).astype(distance.dtype)
    distance = jnp.abs(distance)
  else:
    distance = jnp.maximum(-distance, 0)
  edges = jnp.asarray(bucket_edges(num_buckets, max_distance), distance.dtype)
  return bucket + jnp.searchsorted(edges, distance, side="right", method="compare_all").astype(distance.dtype)


def bucket_edges(num_buckets: int, max_distance: int) -> np.ndarray:
  """Returns the first distance of buckets 1, 2, ... num_buckets - 1."""
  exact = num_buckets // 2
  growth = math.log(max_distance / exact) / (num_buckets - exact)
  logarithmic = exact * np.exp(growth * np.arange(1, num_buckets - exact))
  # The epsilon keeps edges that are exact integers from being rounded up.
  return np.concatenate([np.arange(1, exact + 1), np.ceil(logarithmic - 1e-6)]).astype(np.int32)


def bias_matrix(
  bias: RelativeBias | Alibi, query_length: int, key_length: int, query_offset: jax.Array | None = None
) -> jax.Array:
  """Returns the bias to add to the scores: [1 or batch, heads, query, key] float32."""
  if query_offset is not None:
    query_index = jnp.arange(query_length)[None, :] + query_offset[:, None]  # [batch, query]
    distance = jnp.arange(key_length)[None, None, :] - query_index[:, :, None]
    return jnp.einsum("bqkh->bhqk", bias_at(bias, distance))
  return skew(bias_by_distance(bias, query_length, key_length), query_length, key_length)[None]


def bias_by_distance(bias: RelativeBias | Alibi, query_length: int, key_length: int) -> jax.Array:
  """Returns [heads, query + key] float32: entry t is the bias of `key index - query index` = t - query_length."""
  return bias_at(bias, jnp.arange(-query_length, key_length)).T


def skew(by_distance: jax.Array, query_length: int, key_length: int) -> jax.Array:
  """Expands [heads, query + key] to [heads, query, key].

  Reading a [query, n] buffer of identical rows as [query, n - 1] shifts row i right by i: no index is computed, and
  the backward pass is a sum over rows.
  """
  heads, n = by_distance.shape
  rolled = jnp.roll(by_distance, -query_length, axis=1)  # distance 0 first
  rows = jnp.broadcast_to(rolled[:, None, :], (heads, query_length, n))
  flat = rows.reshape(heads, -1)[:, : query_length * (n - 1)]
  return flat.reshape(heads, query_length, n - 1)[:, :, :key_length]


def bias_at(bias: RelativeBias | Alibi, distance: jax.Array) -> jax.Array:
  """Returns the bias of each distance, [..., heads]: of a table, its row, looked up with a one-hot product.

  The gradient of a gather is a scatter, slow on GPU and TPU; that of a product
  is a product. Full precision keeps the table's float32 values exact.
  """
  if isinstance(bias, Alibi):
    return jnp.abs(distance)[..., None].astype(jnp.float32) * -bias.slopes.reshape((1,) * distance.ndim + (-1,))
  buckets, _ = bias.table.shape
  hot = jax.nn.one_hot(
    relative_buckets(distance, buckets, bias.max_distance, bias.bidirectional),
    buckets,
    dtype=jnp.float32,
  )
  table = bias.table.astype(jnp.float32)
  return jnp.einsum("...n,nh->...h", hot, table, precision=jax.lax.Precision.HIGHEST)
