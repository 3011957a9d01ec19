"""Attention behind one function: softmax(scale * q k^T + bias, masked) v.

The caller describes the mask and the relative position bias (`Mask`,
`RelativeBias`); a back end draws the full [query, key] matrices only if it has
to. `attention(..., backend="auto")` picks a back end; `resolve_backend` says
which one and refuses, by name, what this machine cannot run.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from t5like.errors import UserError, nearest

# Added to masked scores. Finite, so that a row with nothing to look at (an
# empty row of padding) comes out as a harmless average and not as NaN.
_MASKED = -1e30


def _static(default):
  return dataclasses.field(default=default, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
  """Which keys a query may look at. Every given condition must hold.

  causal          key index <= query index.
  prefix          [batch, length], nonzero on a prefix LM's inputs: those
                  positions see one another in both directions.
  query_segments, key_segments
                  [batch, query], [batch, key]: only within the same packed
                  example.
  key_valid       [batch, key], nonzero on real tokens.
  """

  causal: bool = _static(False)
  prefix: jax.Array | None = None
  query_segments: jax.Array | None = None
  key_segments: jax.Array | None = None
  key_valid: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RelativeBias:
  """T5's relative position bias (Raffel et al. 2019, section 2.1) as its table."""

  table: jax.Array  # [buckets, heads]
  bidirectional: bool = _static(True)
  max_distance: int = _static(128)


def attention(
  query: jax.Array,  # [batch, query, heads, kv]
  key: jax.Array,  # [batch, key, heads, kv]
  value: jax.Array,  # [batch, key, heads, kv]
  *,
  mask: Mask,
  bias: RelativeBias | None = None,
  scale: float = 1.0,
  query_offset: jax.Array | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
  backend: str = "auto",
) -> jax.Array:  # [batch, query, heads, kv]
  """Attends; the softmax is in float32 whatever the inputs are.

  query_offset [batch] is the index of each row's first query among the keys
  (decoding with a cache); without it query i stands at key i.
  """
  run = BACKENDS[resolve_backend(backend)].run
  return run(query, key, value, mask, bias, scale, query_offset, dropout_rate, dropout_key)


def _xla_attention(
  query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, bias: RelativeBias | None, scale: float,
  query_offset: jax.Array | None, dropout_rate: float, dropout_key: jax.Array | None,
) -> jax.Array:  # fmt: skip
  """Plain matrix products: every device, every mask; memory grows with query x key."""
  lengths = query.shape[1], key.shape[1]
  scores = scale * jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
  if bias is not None:
    scores = scores + bias_matrix(bias, *lengths, query_offset)
  allowed = mask_matrix(mask, *lengths, query_offset)
  if allowed is not None:
    scores = jnp.where(allowed, scores, _MASKED)
  weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
  if dropout_rate > 0.0 and dropout_key is not None:
    keep = jax.random.bernoulli(dropout_key, 1.0 - dropout_rate, weights.shape)
    weights = jnp.where(keep, weights / (1.0 - dropout_rate), 0.0)
  return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


@dataclasses.dataclass(frozen=True)
class Backend:
  run: Callable[..., jax.Array]
  platforms: tuple[str, ...] | None  # None: runs anywhere
  why: str  # what the run card prints beside the choice


BACKENDS = {
  "xla": Backend(_xla_attention, None, "plain XLA: runs everywhere, memory grows with length^2"),
}


def check_backend(name: str) -> None:
  """Refuses a name that is no back end, on any machine."""
  if name != "auto" and name not in BACKENDS:
    raise UserError(
      f"no attention back end is called {name!r}",
      field="TransformerConfig.attention_backend",
      choices=", ".join(["auto", *BACKENDS]),
      nearest=nearest(name, ["auto", *BACKENDS]),
    )


def resolve_backend(name: str, platform: str | None = None) -> str:
  """The back end that runs for `name` on `platform` (default: this machine's)."""
  check_backend(name)
  if name == "auto":
    return "xla"
  platform = platform or jax.default_backend()
  needs = BACKENDS[name].platforms
  if needs is not None and platform not in needs:
    raise UserError(
      f"attention back end {name!r} does not run on this machine",
      field="TransformerConfig.attention_backend",
      needs=" or ".join(needs),
      found=platform,
      try_="--gin.ATTENTION_BACKEND=auto",
    )
  return name


def mask_matrix(
  mask: Mask, query_length: int, key_length: int, query_offset: jax.Array | None = None
) -> jax.Array | None:
  """True where a query may look: [batch or 1, 1, query, key]; None: everywhere."""
  allowed = []
  if mask.causal:
    query_index = jnp.arange(query_length)[None, :, None]  # [1, query, 1]
    if query_offset is not None:
      query_index = query_index + query_offset[:, None, None]  # [batch, query, 1]
    visible = jnp.arange(key_length)[None, None, :] <= query_index
    if mask.prefix is not None:
      inside = mask.prefix.astype(bool)
      visible = visible | (inside[:, :, None] & inside[:, None, :])
    allowed.append(visible)
  if mask.query_segments is not None:
    allowed.append(mask.query_segments[:, :, None] == mask.key_segments[:, None, :])
  if mask.key_valid is not None:
    allowed.append(mask.key_valid.astype(bool)[:, None, :])
  if not allowed:
    return None
  together = allowed[0]
  for condition in allowed[1:]:
    together = together & condition
  return together[:, None, :, :]


def relative_buckets(distance: jax.Array, num_buckets: int, max_distance: int, bidirectional: bool) -> jax.Array:
  """Bucket of each `key index - query index`.

  Half of the buckets hold one distance each, the rest grow logarithmically up
  to `max_distance`. Bucket edges are computed on the host in float64 and
  compared as integers: a float32 log on the device would put distances such as
  16, 32 and 64 in another bucket from one device to the next.
  """
  bucket = jnp.zeros_like(distance)
  if bidirectional:
    num_buckets //= 2
    bucket = jnp.where(distance > 0, num_buckets, 0).astype(distance.dtype)
    distance = jnp.abs(distance)
  else:
    distance = jnp.maximum(-distance, 0)
  edges = jnp.asarray(_bucket_edges(num_buckets, max_distance), distance.dtype)
  return bucket + jnp.searchsorted(edges, distance, side="right", method="compare_all").astype(distance.dtype)


def _bucket_edges(num_buckets: int, max_distance: int) -> np.ndarray:
  """First distance of buckets 1, 2, ... num_buckets - 1."""
  exact = num_buckets // 2
  growth = math.log(max_distance / exact) / (num_buckets - exact)
  grown = exact * np.exp(growth * np.arange(1, num_buckets - exact))
  # A hair below, so that an edge that is a whole number stays that number.
  return np.concatenate([np.arange(1, exact + 1), np.ceil(grown - 1e-6)]).astype(np.int32)


def bias_matrix(
  bias: RelativeBias, query_length: int, key_length: int, query_offset: jax.Array | None = None
) -> jax.Array:
  """The bias to add to the scores: [1 or batch, heads, query, key] float32."""
  if query_offset is not None:
    query_index = jnp.arange(query_length)[None, :] + query_offset[:, None]  # [batch, query]
    distance = jnp.arange(key_length)[None, None, :] - query_index[:, :, None]
    return jnp.einsum("bqkh->bhqk", _bias_of(bias, distance))
  # The bias depends on key - query alone, so look it up once per distance and
  # skew the vector into a matrix: row i of [query, n] is shifted right by i when
  # its buffer is read as [query, n - 1]. The backward pass is a sum over rows.
  n = query_length + key_length
  distance = jnp.concatenate([jnp.arange(key_length), jnp.arange(-query_length, 0)])  # [n]
  by_distance = _bias_of(bias, distance).T  # [heads, n]
  heads = by_distance.shape[0]
  rows = jnp.broadcast_to(by_distance[:, None, :], (heads, query_length, n))
  skewed = rows.reshape(heads, -1)[:, : query_length * (n - 1)].reshape(heads, query_length, n - 1)
  return skewed[None, :, :, :key_length]


def _bias_of(bias: RelativeBias, distance: jax.Array) -> jax.Array:
  """Table row of each distance, [..., heads], as a one-hot product.

  The gradient of a gather is a scatter, slow on GPU and TPU; that of a product
  is a product. Full precision keeps the table's float32 values exact.
  """
  buckets, _ = bias.table.shape
  hot = jax.nn.one_hot(
    relative_buckets(distance, buckets, bias.max_distance, bias.bidirectional),
    buckets,
    dtype=jnp.float32,
  )
  table = bias.table.astype(jnp.float32)
  return jnp.einsum("...n,nh->...h", hot, table, precision=jax.lax.Precision.HIGHEST)
