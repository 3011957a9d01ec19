"""ELMo (Peters et al. 2018): a language model in both directions over words that are read as characters."""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5like.errors import UserError
from t5like.kernels.activation_functions import relu
from t5like.kernels.activations import add_bias
from t5like.kernels.cross_entropy import cross_entropy
from t5like.kernels.lookup import look_up
from t5like.models.auxiliary import Auxiliary
from t5like.models.embedder import LogitsDense
from t5like.models.layers import Dense, Dropout, dense, kernel_init
from t5like.models.recurrent.config import ELMoConfig
from t5like.models.recurrent.lstm import LSTM, LSTMState, continued, uniform
from t5like.models.stack import INSIDE
from t5like.models.tuning import Tunable

Batch = Mapping[str, jax.Array]
States = tuple[LSTMState, ...]  # one per layer


@dataclasses.dataclass(frozen=True)
class CharacterTable:
  """The characters of a vocabulary's words, as a constant of a model. Tables with one fingerprint are equal.

  ids  [words, characters of a word]: see vocabularies.characters
  """

  fingerprint: str
  ids: np.ndarray = dataclasses.field(compare=False, repr=False)


class CharacterEncoder(nn.Module):
  """A vector for each word from its characters: convolutions, maximum over positions, highway layers, projection."""

  config: ELMoConfig

  @nn.compact
  def __call__(self, characters: jax.Array) -> jax.Array:  # [rows, length, characters] -> [rows, length, embed]
    config, dtype = self.config, jnp.dtype(self.config.param_dtype)
    plain = lambda bound, axes: nn.with_logical_partitioning(uniform(bound), (None,) * axes)  # noqa: E731
    zeros = nn.with_logical_partitioning(nn.initializers.zeros, (None,))
    act = {"relu": relu, "tanh": jnp.tanh}[config.activation]
    table = self.param("embedding", plain(1.0, 2), (config.num_chars, config.char_dim), dtype)
    words = characters.reshape(-1, characters.shape[-1])
    x = look_up(table, words, config.dtype)  # [words, characters, char_dim]
    found = []
    for number, (width, count) in enumerate(config.filters):
      shape = (width, config.char_dim, count)
      kernel = self.param(f"convolution_{number}_kernel", plain(0.05, 3), shape, dtype)
      bias = self.param(f"convolution_{number}_bias", zeros, (count,), dtype)
      y = jax.lax.conv_general_dilated(
        x, kernel.astype(config.dtype), (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
      )
      found.append(act(add_bias(jnp.max(y, axis=1), bias)))
    x = jnp.concatenate(found, axis=-1)  # [words, filters]
    for number in range(config.num_highways):
      gate = jax.nn.sigmoid(_gate(config, x.shape[-1], f"highway_{number}_gate")(x))
      x = gate * act(dense(config, x.shape[-1], ("embed", "mlp"), name=f"highway_{number}")(x)) + (1 - gate) * x
    x = dense(config, config.embed_dim, ("mlp", "embed"), name="project")(x)
    return x.reshape(*characters.shape[:2], config.embed_dim)


def _gate(config: ELMoConfig, width: int, name: str) -> Dense:
  """Builds a gate's layer, almost closed at first so that inputs pass: bias -2 (Srivastava et al. 2015)."""
  return Dense(
    width, dtype=config.dtype, param_dtype=jnp.dtype(config.param_dtype), name=name,
    kernel_init=nn.with_logical_partitioning(kernel_init(config), ("embed", "mlp")),
    bias_init=nn.with_logical_partitioning(nn.initializers.constant(-2.0), ("mlp",)),
  )  # fmt: skip


class Direction(nn.Module):
  """The LSTMs of one direction, with a skip connection around all but the first."""

  config: ELMoConfig

  def setup(self):
    self.layers = [_lstm(self.config) for _ in range(self.config.num_layers)]
    self.dropout = Dropout(self.config.dropout)

  def __call__(
    self, x: jax.Array, states: States | None = None, valid: jax.Array | None = None, deterministic: bool = True
  ) -> tuple[list[jax.Array], States]:
    """Returns the outputs [rows, length, embed] of every layer, and their last states."""
    outputs, after = [], []
    for number, layer in enumerate(self.layers):
      state = layer.zero_state(x.shape[0]) if states is None else states[number]
      y, state = layer(self.dropout(x, deterministic), state, valid, deterministic)
      x = x + y if number and self.config.skip_connections else y
      outputs.append(x)
      after.append(state)
    return outputs, tuple(after)


class ELMo(Tunable):
  """A biLM. Batches have word ids, which `characters` spells, or characters themselves: `decoder_characters`.

  As a language model, it predicts every word from those before it, and from those after it; the losses are added. In
  training, the state of the forward direction is carried from batch to batch; the backward direction, which would
  have to read the next batch first, starts from zeros in every window.
  """

  config: ELMoConfig
  characters: CharacterTable | None = None

  family = "elmo"
  bidirectional = True  # hidden states depend on words to the right: padding must be marked

  def setup(self):
    config = self.config
    self.token_embedder = CharacterEncoder(config)
    self.forward = Direction(config)
    self.backward = Direction(config)
    self.dropout = Dropout(config.dropout)
    if config.has_output:
      self.logits_dense = LogitsDense(config)
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
      self.output_bias = self.param("output_bias", zeros, (config.vocab_size,), jnp.dtype(config.param_dtype))

  @property
  def batch_layout(self) -> str:
    return "decoder"

  @property
  def state_width(self) -> int:
    """The width of hidden states, which are those of both directions."""
    return 2 * self.config.embed_dim

  @nn.nowrap
  def initial_carry(self, rows: int) -> States:
    """Returns the forward direction's state before the first batch: zeros."""
    return zero_states(self.config, rows)

  def __call__(self, batch: Batch, deterministic: bool = True, carry: States | None = None) -> dict[str, jax.Array]:
    """Returns {"logits": [rows, length, vocab]} of the forward direction, and the loss of the backward one.

    A model without output returns {"states": [rows, length, 2 embed]}.
    """
    if not self.config.has_output:
      return {"states": self.hidden_states(batch, deterministic)}
    inputs = batch["decoder_input_tokens"]
    targets = batch.get("decoder_target_tokens", inputs)
    weights = batch.get("decoder_loss_weights", jnp.ones(inputs.shape, jnp.float32))
    words = self._spell(jnp.concatenate([inputs, targets[:, -1:]], axis=1))
    vectors = self.token_embedder(words)
    if carry is not None:
      carry = continued(carry, batch)
    ahead, carry_after = self.forward(vectors[:, :-1], carry, deterministic=deterministic)
    back, _ = self.backward(_reversed(vectors[:, 1:]), deterministic=deterministic)
    outputs = {"logits": self.project(self.dropout(ahead[-1], deterministic))}
    scores = self.project(self.dropout(_reversed(back[-1]), deterministic))
    losses, *_ = cross_entropy(scores, inputs, 0.0, 0.0)
    outputs["auxiliary"] = {"backward_loss": Auxiliary(losses, weights, 1.0)}
    return outputs if carry is None else outputs | {"carry": carry_after}

  def auxiliary_counts(self, batch: Batch) -> dict[str, jax.Array]:
    """Returns the divisors of the losses in outputs["auxiliary"]."""
    return {"backward_loss": jnp.sum(batch["decoder_loss_weights"])}

  def hidden_states(self, batch: Batch, deterministic: bool = True, all_layers: bool = False) -> jax.Array:
    """Returns the last layer's states in both directions, [rows, length, 2 embed]; `all_layers`: as `layers_of`."""
    tokens = batch["decoder_input_tokens"]
    segments = batch.get("decoder_segment_ids")
    lengths = jnp.full(tokens.shape[:1], tokens.shape[1]) if segments is None else jnp.sum(segments > 0, axis=1)
    characters = batch["decoder_characters"] if "decoder_characters" in batch else self._spell(tokens)
    layers, _ = self.layers_of(characters, lengths, deterministic=deterministic)
    if self.is_mutable_collection(INSIDE) and not self.is_initializing():
      self.sow(INSIDE, "states", layers)
    return layers if all_layers else layers[-1]

  def layers_of(
    self, characters: jax.Array, lengths: jax.Array, carry: tuple[States, States] | None = None,
    deterministic: bool = True,
  ) -> tuple[jax.Array, tuple[States, States]]:  # fmt: skip
    """Returns the vectors of words in all layers, [layers + 1, rows, length, 2 embed], and the states after them.

    The first layer is the vector of the word itself, twice. characters [rows, length, characters of a word] are
    those of vocabularies.characters; lengths [rows]. The original implementation carries the states of both directions
    from one batch of sentences to the next: `carry`.
    """
    valid = jnp.arange(characters.shape[1])[None, :] < lengths[:, None]
    x = jnp.where(valid[..., None], self.token_embedder(characters), 0)
    before = (None, None) if carry is None else carry
    ahead, forward = self.forward(x, before[0], valid, deterministic)
    back, backward = self.backward(_reversed(x, lengths), before[1], valid, deterministic)
    pairs = [(x, x), *((a, _reversed(b, lengths)) for a, b in zip(ahead, back, strict=True))]
    return jnp.stack([jnp.concatenate(pair, axis=-1) for pair in pairs]), (forward, backward)

  def project(self, hidden: jax.Array) -> jax.Array:
    """Returns logits of one direction's states: [..., embed] -> [..., vocab]."""
    if hidden.shape[-1] != self.config.embed_dim:
      raise UserError("ELMo reads a text in both directions: it embeds and classifies, and does not score or generate")
    return add_bias(self.logits_dense(hidden), self.output_bias)

  def _spell(self, tokens: jax.Array) -> jax.Array:
    """Returns the characters of words, [rows, length, characters]."""
    if self.characters is None:
      # Shapes only: parameters do not depend on a vocabulary.
      return jnp.zeros((*tokens.shape, self.config.chars_per_word), jnp.int32)
    return jnp.asarray(self.characters.ids)[tokens].astype(jnp.int32)


def zero_states(config: ELMoConfig, rows: int) -> States:
  """Returns the states of one direction before the first word."""
  return tuple(_lstm(config).zero_state(rows) for _ in range(config.num_layers))


def _lstm(config: ELMoConfig) -> LSTM:
  return LSTM(config, config.hidden_dim, config.embed_dim, clip=config.clip)


def _reversed(x: jax.Array, lengths: jax.Array | None = None) -> jax.Array:
  """Reverses the positions of [rows, length, ...]; with lengths, those of each row's words, padding stays behind."""
  if lengths is None:
    return x[:, ::-1]
  position = jnp.arange(x.shape[1])[None, :]
  source = jnp.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)
  return jnp.take_along_axis(x, source[..., None], axis=1)
