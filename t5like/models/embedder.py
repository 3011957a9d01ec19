"""Embeddings and output projections: token ids to vectors, vectors to logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.kernels.attention import ShardedAxes
from t5like.kernels.lookup import look_up
from t5like.kernels.platform import is_single_gpu
from t5like.kernels.products import product
from t5like.models.config import TransformerConfig
from t5like.models.layers import Dropout, Norm, constrain_activations, dense, embedding_init, kernel_init, parameter
from t5like.models.padding import prepend
from t5like.models.positions import sinusoids
from t5like.models.tuning import extended, extensions


class Embedder(nn.Module):
  """The sum of token, position and token type embeddings, as far as the config has them.

  With `embedding_dim`, the tables have that width, and a dense layer follows (Lan et al. 2019, section 3.1); or, for
  `embedding_projection = "tokens"`, only the table of tokens, and the dense layer precedes the sum.

  Both stacks of a T5 with learned or sinusoidal positions share one embedder, and therefore one table of positions;
  with `positions_per_stack` (BART), they share the tokens, and `decoder` has the decoder's positions and norm.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    self.embedding = _table(self, "embedding", config.vocab_size, "vocab")
    if config.positions == "learned":
      self.position_embedding = _table(self, "position_embedding", config.max_positions + config.position_offset)
    if config.positions_per_stack:
      self.decoder = DecoderPositions(config)
    if config.num_token_types:
      self.token_type_embedding = _table(self, "token_type_embedding", config.num_token_types)
    if config.embedding_norm:
      self.norm = Norm(config)
    if config.embedding_dim is not None:
      self.project = dense(config, config.embed_dim, ("embed", "mlp"), use_bias=False if self._tokens_alone else None)
      if self._tokens_alone:
        self.project_back = dense(config, config.embedding_dim, ("mlp", "embed"), use_bias=False)
    self.dropout = Dropout(config.dropout_rate)
    # Factors A [vocab, rank] and B [rank, embed] of updates of the token table.
    self.updates = tuple(extension.factors(self) for extension in extensions(self))
    # A learned prompt [tokens, embed] that precedes the tokens of the stack that reads the inputs.
    prompts = tuple(extension(self) for extension in extensions(self, "prompt"))
    self.vectors = prompts[0] if prompts else None
    # Positions that a learned prefix takes before the first token.
    self.shift = sum(extension.tokens for extension in extensions(self, "shift"))

  @property
  def _tokens_alone(self) -> bool:
    return self.config.embedding_dim is not None and self.config.embedding_projection == "tokens"

  def __call__(
    self, tokens: jax.Array, positions: jax.Array | None = None, token_types: jax.Array | None = None,
    *, deterministic: bool, prompt: bool = False, valid: jax.Array | None = None, projected: bool = True,
    decoder: bool = False,
  ) -> jax.Array:  # fmt: skip
    """Embeds tokens [batch, length]; positions default to 0..length-1, token types to 0.

    With `prompt`, a learned prompt precedes them, if the model has one: it takes the first positions. Where `valid`,
    which includes the prompt, is given and False, the normalized sum is 0. Unless `projected`, embeddings of another
    width than the model's are returned as they are. `decoder`: the tokens are a decoder's.
    """
    config = self.config
    stack = self.decoder if decoder and config.positions_per_stack else self
    x = self._look_up(self.embedding, tokens, "vocab")  # [batch, length, embed]
    for a, b in self.updates:
      x = x + self._look_up(a, tokens, "vocab") @ b.astype(config.dtype)
    if config.scale_embeddings:
      x = x * config.embed_dim**0.5
    if self._tokens_alone:
      x = self.project(x)
    if positions is None:
      positions = default_positions(tokens)
    if self.shift:
      positions = positions + self.shift
    if prompt and self.prompt_length:
      x = jnp.concatenate([self._prompt_rows(x), x], axis=1)
      positions = with_prompt_positions(positions, self.prompt_length)
      token_types = prepend(token_types, self.prompt_length, 0)
      tokens = prepend(tokens, self.prompt_length)
    if config.positions == "learned":
      check_length(config, tokens.shape[1] + self.shift)
      x = x + self._look_up(stack.position_embedding, positions + config.position_offset)
    elif config.positions == "sinusoidal":
      x = x + sinusoids(positions, x.shape[-1]).astype(config.dtype)
    if config.num_token_types:
      is_typed = token_types is not None and config.num_token_types > 1  # else pairs have no second type, either
      types = token_types if is_typed else jnp.zeros_like(tokens)
      x = x + self._look_up(self.token_type_embedding, types)
    if config.embedding_norm:
      x = stack.norm(x)
    if valid is not None:
      x = jnp.where(valid[:, :, None], x, 0)
    x = self.dropout(x, deterministic)
    if config.embedding_dim is not None and not self._tokens_alone and projected:
      x = self.project(x)
    return constrain_activations(x)

  @property
  def prompt_length(self) -> int:
    """The number of vectors of the learned prompt; 0 without one."""
    return 0 if self.vectors is None else self.vectors.shape[0]

  def _prompt_rows(self, x: jax.Array) -> jax.Array:
    """Returns the prompt for each row of x, [batch, tokens, embed]."""
    return jnp.broadcast_to(self.vectors.astype(x.dtype)[None], (x.shape[0], *self.vectors.shape))

  def _look_up(self, table: jax.Array, ids: jax.Array, axis: str | None = None) -> jax.Array:
    """Returns rows [..., embed] of a table in the compute dtype.

    Gathers the table's width first: from a table sharded by width, the result would be sharded by width too, and the
    partitioner could only fix that by replicating it on every device.
    """
    table = nn.with_logical_constraint(table, (axis, None))
    batch, vocab = nn.logical_to_mesh_axes(("batch", axis)) or (None, None)
    rows = look_up(table, ids, self.config.dtype, ShardedAxes(batch, vocab))
    # Not sharded by length if the vocabulary is sharded: each device looks up the tokens of its shard, then all sum up.
    return rows if axis is None else nn.with_logical_constraint(rows, ("batch", None, None))

  def attend(self, hidden: jax.Array, padding: int = 0) -> jax.Array:
    """Returns logits with the tied embedding: [..., embed] -> [..., vocab + padding] in the logits dtype."""
    hidden = scale(self.config, self.project_back(hidden) if self._tokens_alone else hidden)
    pad = lambda table: jnp.pad(table, ((0, padding), (0, 0))) if padding else table  # noqa: E731
    scores = logits(self.config, hidden, pad(self.embedding).T)
    for a, b in self.updates:
      scores = scores + logits(self.config, hidden @ b.T.astype(hidden.dtype), pad(a).T)
    return scores


class DecoderPositions(nn.Module):
  """The decoder's table of positions and its norm, where encoder and decoder have their own."""

  config: TransformerConfig

  def setup(self):
    config = self.config
    self.position_embedding = _table(self, "position_embedding", config.max_positions + config.position_offset)
    if config.embedding_norm:
      self.norm = Norm(config)


def _table(module: nn.Module, name: str, rows: int, axis: str | None = None) -> jax.Array:
  config = module.config
  init = nn.with_logical_partitioning(embedding_init(config), (axis, "embed"))
  wide = config.embedding_projection == "tokens" and axis != "vocab"
  width = config.embed_dim if wide else config.embedding_width
  return parameter(module, name, init, (rows, width), jnp.dtype(config.param_dtype))


class LogitsBias(nn.Module):
  """Adds a number to each token's logit. BART's final_logits_bias is part of a checkpoint but is not trained."""

  config: TransformerConfig
  trains: bool = False

  @nn.compact
  def __call__(self, logits: jax.Array) -> jax.Array:  # [..., vocab + padding]
    zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
    bias = parameter(self, "bias", zeros, (self.config.vocab_size,), jnp.dtype(self.config.param_dtype))
    bias = (bias if self.trains else jax.lax.stop_gradient(bias)).astype(logits.dtype)
    bias = jnp.pad(bias, (0, logits.shape[-1] - len(bias)))
    return logits + bias.reshape((1,) * (logits.ndim - 1) + bias.shape)


class LogitsDense(nn.Module):
  """The output projection of models that do not tie it to the embedding."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:  # [..., embed] -> [..., vocab]
    config = self.config
    init = nn.with_logical_partitioning(kernel_init(config), ("embed", "vocab"))
    shape = (config.embed_dim, config.vocab_size)
    kernel = parameter(self, "kernel", init, shape, jnp.dtype(config.param_dtype))
    return extended(self, lambda hidden: logits(config, hidden, kernel), scale(config, hidden))


def scale(config: TransformerConfig, hidden: jax.Array) -> jax.Array:
  """Scales the states that are multiplied with the output matrix, if the model does so."""
  return hidden * config.embed_dim**-0.5 if config.scale_logits else hidden


def logits(config: TransformerConfig, hidden: jax.Array, kernel: jax.Array) -> jax.Array:
  """Multiplies hidden [..., embed] by kernel [embed, vocab] in the compute dtype, accumulating in the logits dtype."""
  dtype = jnp.dtype(config.logits_dtype)
  # Shards the vocabulary in both passes: activations are communicated, the table is not.
  rows = ("batch",) + (None,) * (hidden.ndim - 2)
  hidden = nn.with_logical_constraint(hidden, (*rows, None))
  scores = product("...d,dv->...v", hidden, kernel.astype(config.dtype), dtype)
  return nn.with_logical_constraint(scores, (*rows, "vocab"))


def logits_padding(config: TransformerConfig) -> int:
  """Returns the number of columns of padding after a model's logits in training.

  On GPUs, XLA pads a product to multiples of 8 columns, and cuts them off by a copy of all logits unless they are kept.
  """
  tied = config.tie_embeddings and not config.softmax_mixtures
  return -config.vocab_size % 8 if tied and is_single_gpu() else 0


def with_prompt_positions(positions: jax.Array | None, count: int) -> jax.Array | None:
  """Returns the positions [batch or 1, length] of a prompt of `count` vectors and the tokens after it."""
  if positions is None or not count:
    return positions
  before = jnp.broadcast_to(jnp.arange(count, dtype=positions.dtype)[None], (positions.shape[0], count))
  return jnp.concatenate([before, positions + count], axis=1)


def default_positions(tokens: jax.Array) -> jax.Array:
  return jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]  # [1, length]


def check_length(config: TransformerConfig, length: int) -> None:
  """Raises UserError if rows are longer than the model's positions, before anything is compiled."""
  if config.position_limit is not None and length > config.position_limit:
    raise UserError(
      f"rows of {length} tokens are too long for a model with {config.max_positions} learned positions",
      field=f"TransformerConfig.max_positions = {config.max_positions}",
      try_=f"lengths of at most {config.max_positions}, or a model trained with more positions",
    )
