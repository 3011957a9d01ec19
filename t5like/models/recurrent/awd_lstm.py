"""AWD-LSTM (Merity et al. 2018), the language model of ULMFiT (Howard and Ruder 2018), with fastai's sizes."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.kernels.activations import add_bias
from t5like.kernels.dropout import dropout
from t5like.models.auxiliary import Auxiliary
from t5like.models.cache import last_tokens
from t5like.models.embedder import Embedder
from t5like.models.gpt import prompt_lengths
from t5like.models.recurrent.config import AWDLSTMConfig
from t5like.models.recurrent.lstm import LSTM, LSTMState, continued
from t5like.models.tuning import Tunable

Batch = Mapping[str, jax.Array]
Carry = tuple[LSTMState, ...]  # one per layer


class VariationalDropout(nn.Module):
  """Dropout with one mask for all positions of a row (Gal and Ghahramani 2016)."""

  rate: float

  @nn.compact
  def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:  # [rows, length, width]
    if not self.rate or deterministic:
      return x
    return x * dropout(jnp.ones((x.shape[0], 1, x.shape[2]), x.dtype), self.rate, self.make_rng("dropout"))


class WordDropout(nn.Module):
  """Drops the embeddings of words: in all places where they occur in a batch."""

  rate: float

  @nn.compact
  def __call__(self, x: jax.Array, tokens: jax.Array, words: int, deterministic: bool) -> jax.Array:
    if not self.rate or deterministic:
      return x
    kept = dropout(jnp.ones((words,), x.dtype), self.rate, self.make_rng("dropout"))
    return x * kept[tokens][..., None]


class LSTMStack(nn.Module):
  """The layers of an AWD-LSTM, with dropout before and between them."""

  config: AWDLSTMConfig

  def setup(self):
    config = self.config
    widths = [config.hidden_dim] * (config.num_layers - 1) + [config.embed_dim]
    self.layers = [LSTM(config, width, recurrent_bias=True, weight_dropout=config.weight_dropout) for width in widths]
    self.input_dropout = VariationalDropout(config.input_dropout)
    self.hidden_dropout = [VariationalDropout(config.hidden_dropout) for _ in widths[1:]]

  def __call__(
    self, x: jax.Array, carry: Carry | None, deterministic: bool, valid: jax.Array | None = None
  ) -> tuple[jax.Array, Carry]:
    """Returns the last layer's outputs, and the states of all layers after the last position or the last valid one."""
    x, after = self.input_dropout(x, deterministic), []
    for number, layer in enumerate(self.layers):
      if number:
        x = self.hidden_dropout[number - 1](x, deterministic)
      state = layer.zero_state(x.shape[0]) if carry is None else carry[number]
      x, state = layer(x, state, valid, deterministic)
      after.append(state)
    return x, tuple(after)


class AWDLSTM(Tunable):
  """A language model that reads a text from left to right, with an output tied to its embeddings and a bias.

  In training as a language model, it carries the states of its layers from batch to batch: see `initial_carry`.
  """

  config: AWDLSTMConfig

  family = "awd_lstm"

  def setup(self):
    config = self.config
    self.token_embedder = Embedder(config)
    self.word_dropout = WordDropout(config.embedding_dropout)
    self.decoder = LSTMStack(config)
    self.output_dropout = VariationalDropout(config.output_dropout)
    zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
    self.output_bias = self.param("output_bias", zeros, (config.vocab_size,), jnp.dtype(config.param_dtype))

  @property
  def batch_layout(self) -> str:
    return "decoder"

  @nn.nowrap
  def initial_carry(self, rows: int) -> Carry:
    """Returns the state before the first batch: zeros. A batch with `decoder_continues` carries it on."""
    config = self.config
    widths = [config.hidden_dim] * (config.num_layers - 1) + [config.embed_dim]
    return tuple(LSTM(config, width).zero_state(rows) for width in widths)

  def __call__(self, batch: Batch, deterministic: bool = True, carry: Carry | None = None) -> dict[str, jax.Array]:
    """Returns {"logits": [rows, length, vocab]}; in training, the penalties; with a `carry`, also the next one."""
    if carry is not None:
      carry = continued(carry, batch)
    states, carry_after = self._read(batch["decoder_input_tokens"], carry, deterministic)
    dropped = self.output_dropout(states, deterministic)
    outputs = {"logits": self.project(dropped)}
    if not deterministic:
      outputs["auxiliary"] = self._penalties(states, dropped, _weights(batch))
    return outputs if carry is None else outputs | {"carry": carry_after}

  def _penalties(self, states: jax.Array, dropped: jax.Array, weights: jax.Array) -> dict[str, Auxiliary]:
    states, dropped = states.astype(jnp.float32), dropped.astype(jnp.float32)
    steps = states[:, 1:] - states[:, :-1]
    square = lambda x: jnp.mean(jnp.square(x), axis=-1)  # noqa: E731
    return {
      "activation_loss": Auxiliary(square(dropped), weights, self.config.activation_penalty),
      "temporal_loss": Auxiliary(square(steps), weights[:, 1:], self.config.temporal_penalty),
    }

  def auxiliary_counts(self, batch: Batch) -> dict[str, jax.Array]:
    """Returns the divisors of the losses in outputs["auxiliary"]."""
    weights = _weights(batch)
    return {"activation_loss": jnp.sum(weights), "temporal_loss": jnp.sum(weights[:, 1:])}

  def hidden_states(self, batch: Batch, deterministic: bool = True, all_layers: bool = False) -> jax.Array:
    """Returns the last layer's states [rows, length, embed], the input of `project`."""
    if all_layers:
      raise UserError(
        "the layers of an AWD-LSTM have different widths: a head reads the last one",
        try_="a head without mix_layers; ELMo's layers can be mixed",
      )
    return self._read(batch["decoder_input_tokens"], None, deterministic)[0]

  def _read(
    self, tokens: jax.Array, carry: Carry | None, deterministic: bool = True, valid: jax.Array | None = None
  ) -> tuple[jax.Array, Carry]:
    x = self.token_embedder(tokens, deterministic=True)
    x = self.word_dropout(x, tokens, self.config.vocab_size, deterministic)
    return self.decoder(x, carry, deterministic, valid)

  def project(self, hidden: jax.Array) -> jax.Array:
    """Returns logits of hidden states: [..., embed] -> [..., vocab]."""
    return add_bias(self.token_embedder.attend(hidden), self.output_bias)

  # Decoding: the states of the layers, {"states": [rows, width]}, take the place of a KV cache.

  def decoder_prompt(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns the prompts [batch, length], padded on the right, and their lengths [batch]."""
    return batch["decoder_input_tokens"], prompt_lengths(batch)

  def first_tokens(self, batch: Batch) -> jax.Array:
    """Returns the input [batch] of the first `decode_step`: the last token of each prompt."""
    return last_tokens(*self.decoder_prompt(batch))

  def start_decoding(self, batch: Batch, max_decode_length: int, hypotheses: int = 1) -> dict[str, Carry]:
    """Reads all tokens of the prompts but the last; states are repeated for the `hypotheses` of a row."""
    prompts, lengths = self.decoder_prompt(batch)
    before = jnp.arange(prompts.shape[1])[None, :] < lengths[:, None] - 1
    _, states = self._read(prompts, None, valid=before)
    return {"states": jax.tree.map(lambda x: jnp.repeat(x, hypotheses, axis=0), states)}

  def decode_step(self, tokens: jax.Array, cache: dict[str, Carry]) -> tuple[jax.Array, dict[str, Carry]]:
    """Feeds tokens [rows]; returns the logits [rows, vocab] of the next tokens and the states after them."""
    outputs, states = self._read(tokens[:, None], cache["states"])
    return self.project(outputs[:, 0]), {"states": states}


def _weights(batch: Batch) -> jax.Array:
  """Returns [rows, length] float32: 0 on padding."""
  if "decoder_loss_weights" in batch:
    return batch["decoder_loss_weights"]
  return jnp.ones(batch["decoder_input_tokens"].shape, jnp.float32)
