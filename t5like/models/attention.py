"""Multi-head attention: projections, the cache of a decoder, and the call to the kernel."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.attention import Mask, RelativeBias, attention
from t5like.models.config import TransformerConfig
from t5like.models.layers import dense
from t5like.models.positions import rotate

KeysValues = dict[str, jax.Array]  # "key", "value": [batch, length, heads, kv]


def _static(default: object) -> dataclasses.Field:
  """A field that is part of the compiled function, not an array."""
  return dataclasses.field(default=default, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
  """What every layer of a stack is told besides its input; the same for all of them."""

  mask: Mask
  positions: jax.Array | None = None  # [batch or 1, length]; None: 0, 1, 2, ...
  bias: RelativeBias | None = None  # the one that all layers share
  encoded: jax.Array | None = None  # [batch, encoder length, embed]: what cross-attention reads
  encoded_mask: Mask = dataclasses.field(default_factory=Mask)
  index: jax.Array | None = None  # [batch]: where a cached decoding step writes and stands
  cache_length: int | None = _static(None)  # set: return a new cache of so many positions
  bidirectional: bool = _static(False)  # future keys get relative position buckets of their own
  deterministic: bool = _static(True)


class RelativeBiasTable(nn.Module):
  """T5's relative position bias (Raffel et al. 2019, section 2.1), stored [heads, buckets] as in T5X."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, bidirectional: bool) -> RelativeBias:
    config = self.config
    init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
    table = self.param(
      "rel_embedding",
      nn.with_logical_partitioning(init, ("heads", None)),
      (config.num_heads, config.relative_buckets),
      jnp.dtype(config.param_dtype),
    )
    return RelativeBias(table.T, bidirectional=bidirectional, max_distance=config.relative_max_distance)


class Attention(nn.Module):
  """Self-attention when called, cross-attention through `cross`. Both return the cache to keep.

  The query, key and value kernels are [embed, heads * kv], as in T5X: two axes,
  so that Adafactor factors them as the original did.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    width = config.num_heads * config.head_dim
    self.query = dense(config, width, ("embed", "heads"), role="query")
    self.key = dense(config, width, ("embed", "heads"))
    self.value = dense(config, width, ("embed", "heads"))
    self.out = dense(config, config.embed_dim, ("heads", "embed"), role="residual")

  def __call__(self, x: jax.Array, context: Context, cache: KeysValues | None) -> tuple[jax.Array, KeysValues | None]:
    """x [batch, length, embed]. With a cache, x is the one token at `context.index`."""
    query = self._split(self.query(x))  # [batch, length, heads, kv]
    new = {"key": self._split(self.key(x)), "value": self._split(self.value(x))}
    if self.config.positions == "rotary":
      positions = context.positions
      if positions is None:
        positions = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :]
      query = rotate(query, positions, self.config.rotary_base)
      new["key"] = rotate(new["key"], positions, self.config.rotary_base)
    if cache is not None:
      new = kept = {name: _write(cache[name], new[name], context.index) for name in new}
    else:
      kept = _padded(new, context.cache_length)
    return self._attend(query, new, context, context.mask, context.bias), kept

  def cross(self, x: jax.Array, context: Context, cache: KeysValues | None) -> tuple[jax.Array, KeysValues | None]:
    """Looks at `context.encoded`, whose keys and values a cache holds ready."""
    keys_values = cache
    if cache is None:
      encoded = context.encoded
      keys_values = {"key": self._split(self.key(encoded)), "value": self._split(self.value(encoded))}
    kept = keys_values if cache is not None or context.cache_length else None
    return self._attend(self._split(self.query(x)), keys_values, context, context.encoded_mask, None), kept

  def _split(self, x: jax.Array) -> jax.Array:
    """[batch, length, heads * kv] -> [batch, length, heads, kv]."""
    x = x.reshape(*x.shape[:2], self.config.num_heads, self.config.head_dim)
    return nn.with_logical_constraint(x, ("batch", "length", "heads", "kv"))

  def _attend(
    self, query: jax.Array, keys_values: KeysValues, context: Context, mask: Mask, bias: RelativeBias | None
  ) -> jax.Array:
    config = self.config
    rate = config.dropout_rate if config.attention_dropout_rate is None else config.attention_dropout_rate
    drop = rate > 0.0 and not context.deterministic
    y = attention(
      query,
      keys_values["key"],
      keys_values["value"],
      mask=mask,
      bias=bias,
      scale=config.head_dim**-0.5 if config.scale_attention else 1.0,
      query_offset=context.index,
      dropout_rate=rate if drop else 0.0,
      dropout_key=self.make_rng("dropout") if drop else None,
      backend=config.attention_backend,
    )  # [batch, length, heads, kv]
    return self.out(y.reshape(*y.shape[:2], -1))


def _write(cache: jax.Array, new: jax.Array, index: jax.Array) -> jax.Array:
  """Puts new [batch, 1, heads, kv] at each row's own index of cache [batch, length, heads, kv].

  A select over the whole cache rather than a scatter: rows stand at different
  indices, and a select stays local however the cache is sharded.
  """
  here = jnp.arange(cache.shape[1])[None, :] == index[:, None]  # [batch, length]
  return jnp.where(here[:, :, None, None], new, cache)


def _padded(keys_values: KeysValues, length: int | None) -> KeysValues | None:
  """The start of a cache of `length` positions; None outside decoding."""
  if length is None:
    return None
  return {name: jnp.pad(x, ((0, 0), (0, length - x.shape[1]), (0, 0), (0, 0))) for name, x in keys_values.items()}
