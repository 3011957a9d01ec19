"""Multi-head attention: projections, the KV cache, and the call to the kernel."""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.activations import add_bias
from t5like.kernels.attention import (
  Alibi,
  AttentionSpec,
  Disentangled,
  Mask,
  RelativeBias,
  RelativeTerms,
  ShardedAxes,
  Synthesized,
  alibi_slopes,
  attention,
  attention_weights,
  bias_matrix,
  choose_backend,
)
from t5like.kernels.attention.cached import DistanceBias, GeneratedKV, SharedKV, StepScores, attend, attend_and_write
from t5like.kernels.platform import deterministic_kernels
from t5like.models.cache import DecodingStep
from t5like.models.config import TransformerConfig
from t5like.models.layers import Dense, Dropout, Norm, dense, embedding_init, joined_product, joins_products, parameter
from t5like.models.positions import rotary_frequencies, rotate
from t5like.models.stepping import fused_products
from t5like.models.tuning import extensions

KeysValues = dict[str, jax.Array]  # "key", "value": [batch, length, kv_heads, kv]


def _static(default: object) -> dataclasses.Field:
  """Declares a static field of a pytree dataclass: part of the compiled function, not an array."""
  return dataclasses.field(default=default, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QueryStream:
  """XLNet's second stream of states, after the content in the input of a stack: modifications/relative_attention.py."""

  mask: Mask  # of queries at all positions of the content
  targets: jax.Array | None  # [batch, predictions, length] one-hot: the position of each state; None: 0, 1, 2, ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
  """The inputs that all layers of a stack share."""

  mask: Mask
  positions: jax.Array | None = None  # [batch or 1, length]; None: 0, 1, 2, ...
  bias: RelativeBias | Alibi | None = None  # shared by all layers
  relative: jax.Array | None = None  # DeBERTa's table [2 buckets, embed]; XLNet's sinusoids [query + key, embed]
  types: jax.Array | None = None  # [batch, key]: XLNet's segments
  query_stream: QueryStream | None = None
  encoded: jax.Array | None = None  # [batch, encoder length, embed]: the input of cross-attention
  encoded_mask: Mask = dataclasses.field(default_factory=Mask)
  prefixes: dict[str, jax.Array] | None = None  # [tokens, hidden] by attention: projected to a learned prefix per layer
  step: DecodingStep | None = None  # for cached decoding; x is then one token per row
  return_kv: bool = _static(False)  # return every layer's keys and values, to start a cache from
  return_states: bool = _static(False)  # return every layer's output instead, for a mix of layers
  return_weights: bool = _static(False)  # with them, the weights of its attention
  return_routing: bool = _static(False)  # return every layer's losses of routing instead
  bidirectional: bool = _static(False)  # future keys have their own relative position buckets
  deterministic: bool = _static(True)


class RelativeBiasTable(nn.Module):
  """T5's relative position bias (Raffel et al. 2019, section 2.1), stored [heads, buckets] as in T5X."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, bidirectional: bool) -> RelativeBias:
    config = self.config
    init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
    table = parameter(
      self,
      "rel_embedding",
      nn.with_logical_partitioning(init, ("heads", None)),
      (config.num_heads, config.relative_buckets),
      jnp.dtype(config.param_dtype),
    )
    return RelativeBias(table.T, bidirectional=bidirectional, max_distance=config.relative_max_distance)


def alibi_bias(config: TransformerConfig) -> Alibi:
  return Alibi(jnp.asarray(alibi_slopes(config.num_heads))[None])


class RelativeTable(nn.Module):
  """DeBERTa's table of relative positions [2 buckets, embed], which every layer projects (He et al. 2020)."""

  config: TransformerConfig

  @nn.compact
  def __call__(self) -> jax.Array:
    config = self.config
    init = nn.with_logical_partitioning(embedding_init(config), (None, "embed"))
    shape = (2 * config.relative_buckets, config.embed_dim)
    table = parameter(self, "embedding", init, shape, jnp.dtype(config.param_dtype)).astype(config.dtype)
    return Norm(config, name="norm")(table) if config.relative_norm else table


class Attention(nn.Module):
  """Self-attention through `__call__`, cross-attention through `cross`. Both also return the updated cache.

  The query, key and value kernels are [embed, heads * kv], as in T5X: two axes,
  so that Adafactor factors them in the same way. Keys and values may have fewer heads (`num_kv_heads`).
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    width, kv_width = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    self.query = dense(config, width, ("embed", "heads"), role="query")
    self.key = dense(
      config, kv_width, ("embed", "heads"), role="branch", use_bias=config.use_bias and config.use_key_bias
    )
    self.value = dense(config, kv_width, ("embed", "heads"), role="branch")
    self.out = dense(config, config.embed_dim, ("heads", "embed"), role="residual")
    if config.qk_norm:
      rms = dataclasses.replace(config, norm="rms")
      self.query_norm, self.key_norm = Norm(rms, axis="heads"), Norm(rms, axis="heads")
    if config.positions == "disentangled":
      self.dropout = Dropout(config.dropout_rate)
      if not config.share_position_projections:
        self.position_query = dense(config, width, ("embed", "heads"), role="query")
        self.position_key = dense(config, width, ("embed", "heads"), use_bias=config.use_bias and config.use_key_bias)
    self.prefix = self._learned_prefix()

  def _learned_prefix(self) -> nn.Module | None:
    """Builds the module of a learned prefix, if there is one. Call within `setup`."""
    prefixes = tuple(build(self.config) for build in extensions(self, "prefix"))
    return prefixes[0] if prefixes else None

  def __call__(
    self, x: jax.Array, context: Context, cache: dict | None, residual: jax.Array | None = None
  ) -> tuple[jax.Array, KeysValues | None]:
    """Attends to x [batch, length, embed]; with a cache, x is one token per row and the generated part is returned.

    residual: is added to the result of a decoding step.
    """
    if context.step is not None:
      return self._step(x, context, cache, residual)
    mask = dataclasses.replace(context.mask, window=self.config.attention_window)
    layers = self.query, self.key, self.value
    changed = self.config.positions == "rotary" or self.config.qk_norm
    if not changed and self._joins(layers, x, x, context, mask):
      return self._attend(self._joined(layers, x), {"key": None, "value": None}, context, mask, context.bias)
    query, key = self._normalize(self.query(x), self.key(x))
    query = self._split_heads(query)  # [batch, length, heads, kv]
    new = {"key": self._split_heads(key), "value": self._split_heads(self.value(x))}
    query, new["key"] = self._rotate(query, new["key"], context.positions)
    return self._attend(query, new, context, mask, context.bias)

  def cross(
    self, x: jax.Array, context: Context, cache: jax.Array | None, residual: jax.Array | None = None
  ) -> tuple[jax.Array, KeysValues | None]:
    """Attends to `context.encoded`, or to its keys and values in the cache."""
    if cache is not None:
      shared = SharedKV(cache, context.step.encoder_valid)
      y = attend(self._split_heads(self.query(x))[:, 0], shared, **self._cached_options(context))
      return self.out(y.reshape(y.shape[0], 1, -1), residual), cache
    encoded, mask, query = context.encoded, context.encoded_mask, self._split_heads(self.query(x))
    layers = self.key, self.value
    if self._joins(layers, x, encoded, context, mask):
      new = {"key": self._joined(layers, encoded), "value": None}
    else:
      new = {"key": self._split_heads(self.key(encoded)), "value": self._split_heads(self.value(encoded))}
    return self._attend(query, new, context, mask, None)

  def _joins(self, layers: Sequence[Dense], x: jax.Array, encoded: jax.Array, context: Context, mask: Mask) -> bool:
    """Whether one product computes what `layers` do: for the kernel that reads it where it is written."""
    config = self.config
    if context.return_kv or context.return_weights:
      return False
    spec = AttentionSpec(
      config.compute_dtype, config.head_dim, x.shape[1], encoded.shape[1],
      has_bias=context.bias is not None and encoded is x, has_prefix=mask.causal and mask.prefix is not None,
      packed=mask.query_segments is not None, dropout=config.attention_dropout > 0.0 and not context.deterministic,
      positions=config.positions, learned_keys=self.prefix is not None,
    )  # fmt: skip
    kernel, _ = choose_backend(config.attention_backend, spec)
    return kernel == "pallas_gpu" and joins_products(layers, "heads")

  def _joined(self, layers: Sequence[Dense], x: jax.Array) -> jax.Array:
    """Returns the results of `layers` in one array [batch, length, layers, heads, kv]."""
    y, bias = joined_product(layers, x)
    y = y if bias is None else add_bias(y, bias)
    return self._split_heads(y.reshape(*x.shape[:-1], len(layers), -1))

  def _step(
    self, x: jax.Array, context: Context, cache: dict, residual: jax.Array | None
  ) -> tuple[jax.Array, jax.Array]:
    """Writes the key and value of one token per row to the cache, and attends to it."""
    step, generated = context.step, cache["generated"]  # [rows, 2, kv_heads, length, kv]
    new, window = self._project_qkv(x, step), self.config.attention_window
    shared = None
    if "prompt" in cache:
      valid = step.prompt_valid
      if window is not None:  # hypotheses of a row are at the same position
        at = step.index.reshape(valid.shape[0], -1)[:, :1]
        valid = valid & (jnp.arange(valid.shape[1])[None, :] > at - window)
      shared = SharedKV(cache["prompt"], valid)
    bias = None
    if context.bias is not None:
      length = generated.shape[3] + (cache["prompt"].shape[3] if "prompt" in cache else 0)
      offset = jnp.full((1,), length - 1, jnp.int32)
      by_distance = bias_matrix(context.bias, 1, length, offset)[0, :, 0, ::-1]  # [heads, length]
      bias = DistanceBias(by_distance, step.index)
    generated = GeneratedKV(generated, step.generated_length, step.origins, window)
    scores = self._step_scores(new, step)
    scores = None if scores is None else StepScores(scores, step.index)
    y, generated = attend_and_write(new, generated, shared, bias, synthesized=scores, **self._cached_options(context))
    return self.out(y.reshape(y.shape[0], 1, -1), residual), generated

  def _project_qkv(self, x: jax.Array, step: DecodingStep) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Projects x [rows, 1, embed] to query, key and value, with few products if weights are fused.

    Returns [rows, 3, heads, kv], or the query [rows, heads, kv] and the others [rows, 2, kv_heads, kv].
    """
    config = self.config
    x = x.astype(config.dtype)
    if self.has_variable("fused", "qkv"):
      y = fused_products(self, "qkv", x)[:, 0]  # [rows, 3, heads * kv]
      if config.positions != "rotary" and not config.qk_norm:
        y = y.reshape(*y.shape[:2], config.num_heads, config.head_dim)
        return nn.with_logical_constraint(y, ("batch", None, "heads", "kv"))
      query, key, value = y[:, None, 0], y[:, None, 1], y[:, None, 2]
    elif self.has_variable("fused", "kv"):
      y = fused_products(self, "kv", x)
      query, key, value = self.query(x), y[:, :, 0], y[:, :, 1]
    else:
      query, key, value = self.query(x), self.key(x), self.value(x)
    query, key = map(self._split_heads, self._normalize(query, key))
    query, key = self._rotate(query, key, step.index[:, None])
    return query[:, 0], jnp.concatenate([key, self._split_heads(value)], axis=1)

  def _step_scores(self, new: jax.Array | tuple[jax.Array, jax.Array], step: DecodingStep) -> Synthesized | None:
    """Returns the scores of one token per row that are not products, if there are any."""
    return None

  def _normalize(self, query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Normalizes all queries and all keys of a token [..., heads * kv], if the model does so."""
    return (self.query_norm(query), self.key_norm(key)) if self.config.qk_norm else (query, key)

  def _rotate(self, query: jax.Array, key: jax.Array, positions: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Applies rotary positions to query and key, if the model has them."""
    if self.config.positions != "rotary":
      return query, key
    if positions is None:
      positions = jnp.arange(query.shape[1], dtype=jnp.int32)[None, :]
    frequencies = rotary_frequencies(self.config)
    return rotate(query, positions, frequencies), rotate(key, positions, frequencies)

  def _scale(self) -> float:
    """Returns the factor of scores, which have three terms in DeBERTa."""
    terms = 3 if self.config.positions == "disentangled" else 1
    return (terms * self.config.head_dim) ** -0.5 if self.config.scale_attention else 1.0

  def _disentangled(self, context: Context) -> Disentangled | None:
    """Returns this layer's projections of the table of relative positions, if the model has one."""
    config = self.config
    if config.positions != "disentangled":
      return None
    table = self.dropout(context.relative, context.deterministic)
    shared = config.share_position_projections
    query, key = (self.query, self.key) if shared else (self.position_query, self.position_key)
    split = lambda x: x.reshape(x.shape[0], config.num_heads, config.head_dim)  # noqa: E731
    return Disentangled(split(query(table)), split(key(table)), config.relative_max_distance)

  def _cached_options(self, context: Context) -> dict:
    config = self.config
    scale = config.head_dim**-0.5 if config.scale_attention else 1.0
    kernel = False if config.attention_backend == "xla" else None
    return {"scale": scale, "kernel": kernel, "prefix": self._prefix(context)}

  def _prefix(self, context: Context) -> jax.Array | None:
    """Returns the learned keys and values [2, tokens, kv_heads, kv] that every query sees, if there are any."""
    return None if self.prefix is None else self.prefix((context.prefixes or {}).get(self.name))

  def _split_heads(self, x: jax.Array) -> jax.Array:
    """Reshapes [batch, length, ..., heads * kv] to [batch, length, ..., heads, kv]."""
    x = x.reshape(*x.shape[:-1], -1, self.config.head_dim)
    return nn.with_logical_constraint(x, ("batch", "length", *(None,) * (x.ndim - 4), "heads", "kv"))

  def _attend(
    self, query: jax.Array, keys_values: KeysValues, context: Context, mask: Mask, bias: RelativeBias | Alibi | None
  ) -> tuple[jax.Array, KeysValues | jax.Array | None]:
    """Returns the result, and the keys and values, or the weights [batch, heads, query, key], if requested."""
    y, kept = self._mix(query, keys_values, context, mask, bias, self._disentangled(context))
    return self.out(y), kept

  def _mix(
    self, query: jax.Array, keys_values: KeysValues, context: Context, mask: Mask,
    bias: RelativeBias | Alibi | None = None,
    relative: Disentangled | RelativeTerms | Synthesized | None = None,
  ) -> tuple[jax.Array, KeysValues | jax.Array | None]:  # fmt: skip
    """Returns the mix of values [batch, query, heads * kv], and what `_attend` returns in addition."""
    config = self.config
    rate = config.attention_dropout
    drop = rate > 0.0 and not context.deterministic
    y = attention(
      query,
      keys_values["key"],
      keys_values["value"],
      mask=mask,
      bias=bias,
      scale=self._scale(),
      dropout_rate=rate if drop else 0.0,
      dropout_key=self.make_rng("dropout") if drop else None,
      backend=config.attention_backend,
      axes=_sharded_axes(),
      prefix=self._prefix(context),
      relative=relative,
    )  # [batch, length, heads, kv]
    # Without the constraint, a stack sharded by position would gather the kernel.
    y = nn.with_logical_constraint(y.reshape(*y.shape[:2], -1), ("batch", "length", "heads"))
    kept = keys_values if context.return_kv else None
    if context.return_weights:
      more = dict(prefix=self._prefix(context), relative=relative)
      kept = attention_weights(query, keys_values["key"], mask, bias, self._scale(), **more)
    return y, kept


def _sharded_axes() -> ShardedAxes:
  """Returns the mesh axes to which the active sharding rules map rows and heads."""
  rows, heads = nn.logical_to_mesh_axes(("batch", "heads")) or (None, None)
  return ShardedAxes(rows, heads)


def describe_backend(
  config: TransformerConfig, encoder_length: int = 0, decoder_length: int = 0, packed: bool = False,
  platform: str | None = None, deterministic: bool = True,
) -> str:  # fmt: skip
  """Returns the attention back ends of a train step with reasons, one line per kind of attention."""
  rate = config.attention_dropout
  biased = config.positions in ("relative_bias", "alibi")
  kinds = {
    "encoder": (encoder_length, encoder_length, biased),
    "decoder": (decoder_length, decoder_length, biased),
    "cross": (decoder_length, encoder_length, False),
  }
  lines = {}
  for kind, (queries, keys, has_bias) in kinds.items():
    if queries and keys:
      spec = AttentionSpec(
        dtype=config.compute_dtype, head_dim=config.head_dim, query_length=queries, key_length=keys,
        has_bias=has_bias, has_prefix=config.prefix_lm and kind == "decoder",
        packed=packed, dropout=rate > 0.0, positions=config.positions,
        synthesized=config.synthesizer != "none" and kind != "cross",
      )  # fmt: skip
      with deterministic_kernels(deterministic):
        lines.setdefault(choose_backend(config.attention_backend, spec, platform), []).append(kind)
  if len(lines) == 1:
    ((name, reason),) = lines
    return f"{name} ({reason})"
  return "\n".join(f"{' and '.join(kinds)}: {name} ({reason})" for (name, reason), kinds in lines.items())
