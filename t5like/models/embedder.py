"""Token ids to vectors, and (where tied) vectors back to logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.kernels.attention import Split
from t5like.kernels.lookup import look_up
from t5like.kernels.products import product
from t5like.models.config import TransformerConfig
from t5like.models.layers import Norm, embedding_init, kernel_init, on_activations
from t5like.models.positions import sinusoids


class Embedder(nn.Module):
  """Tokens + positions + token types, each only where the config has it.

  A T5 with learned or sinusoidal positions uses one embedder, and so one table
  of positions, for both of its stacks.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    self.embedding = self._table("embedding", config.vocab_size, "vocab")
    if config.positions == "learned":
      self.position_embedding = self._table("position_embedding", config.max_positions)
    if config.num_token_types:
      self.token_type_embedding = self._table("token_type_embedding", config.num_token_types)
    if config.embedding_norm:
      self.norm = Norm(config)
    self.dropout = nn.Dropout(config.dropout_rate)

  def _table(self, name: str, rows: int, axis: str | None = None) -> jax.Array:
    init = nn.with_logical_partitioning(embedding_init(self.config), (axis, "embed"))
    return self.param(name, init, (rows, self.config.embed_dim), jnp.dtype(self.config.param_dtype))

  def __call__(
    self, tokens: jax.Array, positions: jax.Array | None = None, token_types: jax.Array | None = None,
    *, deterministic: bool,
  ) -> jax.Array:  # fmt: skip
    """tokens [batch, length]; positions default to 0..length-1; token types to 0."""
    config = self.config
    x = self._look_up(self.embedding, tokens, "vocab")  # [batch, length, embed]
    if config.scale_embeddings:
      x = x * config.embed_dim**0.5
    if positions is None:
      positions = default_positions(tokens)
    if config.positions == "learned":
      check_length(config, tokens.shape[1])
      x = x + self._look_up(self.position_embedding, positions)
    elif config.positions == "sinusoidal":
      x = x + sinusoids(positions, config.embed_dim).astype(config.dtype)
    if config.num_token_types:
      types = jnp.zeros_like(tokens) if token_types is None else token_types
      x = x + self._look_up(self.token_type_embedding, types)
    if config.embedding_norm:
      x = self.norm(x)
    return on_activations(self.dropout(x, deterministic=deterministic))

  def _look_up(self, table: jax.Array, ids: jax.Array, axis: str | None = None) -> jax.Array:
    """Rows [..., embed] of a table in the compute dtype.

    Its width is gathered first. Looked up in a table that is split by width, rows of the batch would come out split
    by width too, and the partitioner could only mend that by making all of them whole on every device.
    """
    table = nn.with_logical_constraint(table, (axis, None))
    batch, vocab = nn.logical_to_mesh_axes(("batch", axis)) or (None, None)
    rows = look_up(table, ids, self.config.dtype, Split(batch, vocab))
    # Whole in length where the table is split: each device finds the tokens of its part, and the sum is all of them.
    return rows if axis is None else nn.with_logical_constraint(rows, ("batch", None, None))

  def attend(self, hidden: jax.Array) -> jax.Array:
    """Scores of every token: [..., embed] -> [..., vocab] in the logits dtype."""
    return logits(self.config, hidden, self.embedding.T)


class LogitsDense(nn.Module):
  """An output projection of its own, for models that do not tie it to the embedding."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:  # [..., embed] -> [..., vocab]
    config = self.config
    init = nn.with_logical_partitioning(kernel_init(config), ("embed", "vocab"))
    shape = (config.embed_dim, config.vocab_size)
    return logits(config, hidden, self.param("kernel", init, shape, jnp.dtype(config.param_dtype)))


def logits(config: TransformerConfig, hidden: jax.Array, kernel: jax.Array) -> jax.Array:
  """hidden [..., embed] times kernel [embed, vocab]: multiplied in the compute dtype, summed in the logits dtype."""
  if config.scale_logits:
    hidden = hidden * config.embed_dim**-0.5
  dtype = jnp.dtype(config.logits_dtype)
  # The vocabulary is what is split, in both directions: activations travel, the table does not.
  rows = ("batch",) + (None,) * (hidden.ndim - 2)
  hidden = nn.with_logical_constraint(hidden, (*rows, None))
  scores = product("...d,dv->...v", hidden, kernel.astype(config.dtype), dtype)
  return nn.with_logical_constraint(scores, (*rows, "vocab"))


def default_positions(tokens: jax.Array) -> jax.Array:
  return jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]  # [1, length]


def check_length(config: TransformerConfig, length: int) -> None:
  """Refuses rows longer than the learned positions, before anything is compiled."""
  if config.positions == "learned" and length > config.max_positions:
    raise UserError(
      f"rows of {length} tokens do not fit a model with {config.max_positions} learned positions",
      field=f"TransformerConfig.max_positions = {config.max_positions}",
      try_=f"lengths of at most {config.max_positions}, or a model trained with more positions",
    )
