"""XLNet's relative attention with two streams (Yang et al. 2019, section 2.3).

The content stream reads tokens. The query stream predicts them: the state of a position knows where it is and what
comes before it in the order of prediction, but not its own token. Both have the same weights, so the query stream
follows the content in one array, of which norms and MLPs need not know; only attention treats them differently. Keys
and values are those of the content, after a memory: the states of an earlier segment.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.attention import Mask, RelativeTerms
from t5like.models.attention import Attention, Context, KeysValues
from t5like.models.config import TransformerConfig
from t5like.models.layers import Dropout, dense
from t5like.models.positions import sinusoids


class RelativePositions(nn.Module):
  """Sinusoids of all distances between queries and keys, which every layer projects. It has no parameters."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: jax.Array, keys: int, context: Context) -> jax.Array:
    """Returns [query + key, embed] for the input x of a stack: see kernels/attention/transformer_xl.py."""
    distances = keys - 1 - jnp.arange(content_length(x, context) + keys)
    table = sinusoids(distances, self.config.embed_dim).astype(self.config.dtype)
    return Dropout(self.config.dropout_rate)(table, context.deterministic)


class RelativeAttention(Attention):
  """Self-attention with Transformer-XL's relative positions, a memory, and a second stream of queries.

  The cache of a layer, if there is one, is its memory: {"memory": [batch, length, embed]}.
  """

  def setup(self):
    config = self.config
    width = config.num_heads * config.head_dim
    for name in ("query", "key", "value", "position"):
      role = "plain" if name == "position" else "query" if name == "query" else "branch"
      setattr(self, name, dense(config, width, ("embed", "heads"), role, use_bias=False))
    self.out = dense(config, config.embed_dim, ("heads", "embed"), role="residual", use_bias=False)
    for name in ("content_bias", "position_bias", "segment_bias"):
      setattr(self, name, self._vectors(name, (width,), ("heads",)))
    self.segment_embedding = self._vectors("segment_embedding", (2, width), (None, "heads"))
    self.prefix = self._learned_prefix()

  def _vectors(self, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> jax.Array:
    init = nn.with_logical_partitioning(nn.initializers.normal(self.config.initializer_stddev), axes)
    return self.param(name, init, shape, jnp.dtype(self.config.param_dtype))

  def __call__(
    self, x: jax.Array, context: Context, cache: dict | None
  ) -> tuple[jax.Array, KeysValues | jax.Array | None]:
    """Attends to the content of x [batch, length (+ predictions), embed] and to the memory."""
    length, stream = content_length(x, context), context.query_stream
    read = x[:, :length]
    if cache is not None:
      read = jnp.concatenate([cache["memory"].astype(x.dtype), read], axis=1)
    keys_values = {"key": self._split_heads(self.key(read)), "value": self._split_heads(self.value(read))}
    query = self.query(x)  # [batch, length (+ predictions), heads * kv]
    positions = self._by_head(self.position(context.relative))
    y, kept = self._read(query[:, :length], keys_values, positions, context, context.mask)
    if stream is not None:
      asked = query[:, length:]
      if stream.targets is not None:  # moves each query to its position: a shift needs all of them
        asked = jnp.einsum("bml,bmd->bld", stream.targets.astype(asked.dtype), asked)
      z, _ = self._read(asked, keys_values, positions, context, stream.mask)
      if stream.targets is not None:
        z = jnp.einsum("bml,bld->bmd", stream.targets.astype(z.dtype), z)
      y = jnp.concatenate([y, z], axis=1)
    return self.out(y), kept

  def _read(
    self, query: jax.Array, keys_values: KeysValues, positions: jax.Array, context: Context, mask: Mask
  ) -> tuple[jax.Array, KeysValues | jax.Array | None]:
    """Returns what one stream of queries [batch, length, heads * kv] reads, and what was requested in addition."""
    biased = lambda bias: self._split_heads(query + bias.astype(query.dtype)[None, None])  # noqa: E731
    terms = RelativeTerms(biased(self.position_bias), positions)
    if context.types is not None:
      segments = self._by_head(self.segment_embedding.astype(query.dtype))
      terms = RelativeTerms(biased(self.position_bias), positions, biased(self.segment_bias), segments, context.types)
    return self._mix(biased(self.content_bias), keys_values, context, mask, relative=terms)

  def _by_head(self, x: jax.Array) -> jax.Array:
    """Reshapes [n, heads * kv] to [n, heads, kv]."""
    return nn.with_logical_constraint(x.reshape(x.shape[0], -1, self.config.head_dim), (None, "heads", "kv"))


def content_length(x: jax.Array, context: Context) -> int:
  """Returns the number of positions of the content in the input x of a layer."""
  stream = context.query_stream
  if stream is None:
    return x.shape[1]
  return x.shape[1] // 2 if stream.targets is None else x.shape[1] - stream.targets.shape[1]
