"""Synthesizer: attention weights without products of queries and keys (Tay et al. 2020, arXiv 2005.00743).

`config.synthesizer` names where the scores of a layer's self-attention come from:

    dense       relu(q_i) W: the query's token alone, whatever the keys are. W is shared by the heads
    random      a learned table, an entry for each pair of positions
    factorized  the same, a product of two tables with 16 columns
    dense_plus, random_plus                the sum of such scores and of products of queries and keys
    dense_plus_alpha, random_plus_alpha    a mean of both, weighted by a learned number

Parts, initialization and the numbers above are those of the authors' code (Mesh TensorFlow, `synthetic_attention`),
with which Narang et al. 2021 made their table: their counts of parameters follow. Cross-attention has products, and
biases and masks apply as elsewhere. Positions are those of a token in its own example, also in packed rows.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.attention.synthesized import Synthesized
from t5like.kernels.products import product
from t5like.models.attention import Attention, Context, KeysValues
from t5like.models.cache import DecodingStep
from t5like.models.config import TransformerConfig
from t5like.models.embedder import check_length
from t5like.models.layers import dense, kernel_init

FACTORS = 16  # columns of a factorized table


class SynthesizerAttention(Attention):
  """Self-attention with synthesized scores. Only models that need them have queries and keys.

  A cache holds keys and values, so where there are no keys it holds the values twice.
  """

  def setup(self):
    config = self.config
    width = config.num_heads * config.head_dim
    self.value = dense(config, width, ("embed", "heads"), role="branch")
    self.out = dense(config, config.embed_dim, ("heads", "embed"), role="residual")
    if has_query(config):
      self.query = dense(config, width, ("embed", "heads"), role="query")
    if has_key(config):
      bias = config.use_bias and config.use_key_bias
      self.key = dense(config, width, ("embed", "heads"), role="branch", use_bias=bias)
    heads, length = config.num_heads, config.max_positions
    if config.synthesizer.startswith("dense"):
      self.synthesizer = self._array("synthesizer", kernel_init(config), (config.head_dim, length), ("kv", None))
    elif config.synthesizer == "factorized":
      names, shape = ("query_factors", "key_factors"), (heads, length, FACTORS)
      self.factors = [self._array(name, _glorot(1), shape, ("heads", None, None)) for name in names]
    else:
      self.table = self._array("position_scores", _glorot(2), (heads, length, length), ("heads", None, None))
    if config.synthesizer.endswith("alpha"):
      self.alpha = self._array("alpha", nn.initializers.zeros, (1,), (None,))
    self.prefix = None

  def _array(self, name: str, init: nn.initializers.Initializer, shape: tuple[int, ...], axes: tuple) -> jax.Array:
    return self.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.dtype(self.config.param_dtype))

  def __call__(
    self, x: jax.Array, context: Context, cache: dict | None, residual: jax.Array | None = None
  ) -> tuple[jax.Array, KeysValues | jax.Array | None]:
    """Attends to x [batch, length, embed]; with a cache, x is one token per row and the generated part is returned."""
    if context.step is not None:
      return self._step(x, context, cache, residual)
    check_length(self.config, x.shape[1])
    value = self._split_heads(self.value(x))
    query = self._split_heads(self.query(x)) if has_query(self.config) else value  # only its shape is read
    new = {"key": self._split_heads(self.key(x)) if has_key(self.config) else value, "value": value}
    mask = dataclasses.replace(context.mask, window=self.config.attention_window)
    scores = self._synthesized(self._pairs(query, context.positions))
    y, kept = self._mix(query, new, context, mask, context.bias, scores)
    return self.out(y), kept

  def _synthesized(self, scores: jax.Array) -> Synthesized:
    share = jax.nn.sigmoid(self.alpha.astype(jnp.float32))[0] if self.config.synthesizer.endswith("alpha") else None
    return Synthesized(scores, share, replaces=not has_key(self.config))

  def _pairs(self, query: jax.Array, positions: jax.Array | None) -> jax.Array:
    """Returns [batch or 1, heads, query, key] for a query [batch, length, heads, kv].

    positions  [batch or 1, length]: those of packed rows; None: 0, 1, 2, ...
    """
    length = self.config.max_positions if positions is not None else query.shape[1]
    if self.config.synthesizer.startswith("dense"):
      scores = self._by_token("bqhd,dk->bhqk", query, length)  # [batch, heads, query, positions]
    else:
      table = self._table(length)
      scores = table[None] if positions is None else jnp.moveaxis(table[:, positions], 0, 1)
    return scores if positions is None else jnp.take_along_axis(scores, positions[:, None, None, :], axis=3)

  def _step_scores(self, new: jax.Array | tuple[jax.Array, jax.Array], step: DecodingStep) -> Synthesized:
    """Returns the scores of one token per row, [rows, heads, positions]."""
    config, length = self.config, self.config.max_positions
    if config.synthesizer.startswith("dense"):
      return self._synthesized(self._by_token("rhd,dk->rhk", new[0] if isinstance(new, tuple) else new[:, 0], length))
    if config.synthesizer == "factorized":
      query, key = (factors.astype(jnp.float32) for factors in self.factors)
      return self._synthesized(jnp.einsum("hrf,hkf->rhk", query[:, step.index], key))
    return self._synthesized(jnp.moveaxis(self._table(length)[:, step.index], 0, 1))

  def _by_token(self, equation: str, query: jax.Array, length: int) -> jax.Array:
    kernel = self.synthesizer[:, :length].astype(self.config.dtype)
    return product(equation, jax.nn.relu(query * self._scale()), kernel, jnp.float32)

  def _table(self, length: int) -> jax.Array:
    """Returns [heads, query, key] float32 for the first `length` positions."""
    if self.config.synthesizer != "factorized":
      return self.table[:, :length, :length].astype(jnp.float32)
    query, key = (factors[:, :length].astype(jnp.float32) for factors in self.factors)
    return jnp.einsum("hqf,hkf->hqk", query, key)

  def _project_qkv(self, x: jax.Array, step: DecodingStep) -> jax.Array | tuple[jax.Array, jax.Array]:
    if has_key(self.config):
      return super()._project_qkv(x, step)
    value = self._split_heads(self.value(x))  # [rows, 1, heads, kv]
    query = self._split_heads(self.query(x)) if has_query(self.config) else value
    return query[:, 0], jnp.concatenate([value, value], axis=1)


def has_query(config: TransformerConfig) -> bool:
  """Whether self-attention has queries."""
  return config.synthesizer not in ("random", "factorized")


def has_key(config: TransformerConfig) -> bool:
  """Whether self-attention has products of queries and keys."""
  return config.synthesizer == "none" or "plus" in config.synthesizer


def _glorot(columns: int) -> nn.initializers.Initializer:
  """Returns TensorFlow's default initializer of tables [heads, positions, ...], as it takes their axes there."""
  return nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=0, out_axis=columns)
