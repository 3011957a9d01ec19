"""An LSTM over the positions of a batch, with projection (Sak et al. 2014) and weight drop where a model has them."""

from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.activations import add_bias
from t5like.kernels.dropout import dropout
from t5like.models.layers import Dense
from t5like.models.recurrent.config import RecurrentConfig


class LSTMState(NamedTuple):
  """The state that an LSTM carries from one position to the next, float32."""

  cell: jax.Array  # [rows, features]
  output: jax.Array  # [rows, projection or features]


class LSTM(nn.Module):
  """An LSTM layer. Gates are stored in the order input, forget, cell, output, as in torch.

  features         width of the cell
  projection       width of the output; None: that of the cell, without a projection
  recurrent_bias   a second bias, which adds up with the first, as in torch
  clip             bounds of cell and projection
  weight_dropout   share of recurrent weights that training drops, the same for all positions (Merity et al. 2018)
  """

  config: RecurrentConfig
  features: int
  projection: int | None = None
  recurrent_bias: bool = False
  clip: float | None = None
  weight_dropout: float = 0.0

  @nn.nowrap
  def zero_state(self, rows: int) -> LSTMState:
    width = self.projection or self.features
    return LSTMState(jnp.zeros((rows, self.features), jnp.float32), jnp.zeros((rows, width), jnp.float32))

  @nn.compact
  def __call__(
    self, x: jax.Array, state: LSTMState, valid: jax.Array | None = None, deterministic: bool = True
  ) -> tuple[jax.Array, LSTMState]:
    """Returns outputs [rows, length, width] and the last state.

    x [rows, length, in]; where `valid` [rows, length] is False, the state stays as it is and the output is 0.
    """
    config, dtype = self.config, jnp.dtype(self.config.param_dtype)
    spread = uniform(self.features**-0.5)
    gates = Dense(
      4 * self.features, dtype=config.dtype, param_dtype=dtype, name="input",
      kernel_init=nn.with_logical_partitioning(spread, ("embed", "mlp")),
      bias_init=nn.with_logical_partitioning(_forget_bias, ("mlp",)),
    )(x)  # fmt: skip
    width = self.projection or self.features
    recurrent = nn.with_logical_partitioning(spread, (None, "mlp"))
    kernel = self.param("recurrent_kernel", recurrent, (width, 4 * self.features), dtype)
    if self.recurrent_bias:
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("mlp",))
      gates = add_bias(gates, self.param("recurrent_bias", zeros, (4 * self.features,), dtype))
    if self.weight_dropout and not deterministic:
      kernel = dropout(kernel, self.weight_dropout, self.make_rng("dropout"))
    project = None
    if self.projection:
      axes = nn.with_logical_partitioning(spread, ("mlp", None))
      project = self.param("projection", axes, (self.features, self.projection), dtype).astype(config.dtype)
    kernel = kernel.astype(config.dtype)

    def advance(state: LSTMState, inputs: tuple[jax.Array, jax.Array | None]) -> tuple[LSTMState, jax.Array]:
      gates, real = inputs
      gates = (gates + state.output.astype(config.dtype) @ kernel).astype(jnp.float32)  # [rows, 4 features]
      enter, keep, new, leave = jnp.split(gates, 4, axis=-1)
      cell = self._clipped(jax.nn.sigmoid(keep) * state.cell + jax.nn.sigmoid(enter) * jnp.tanh(new))
      output = jax.nn.sigmoid(leave) * jnp.tanh(cell)
      if project is not None:
        output = self._clipped((output.astype(config.dtype) @ project).astype(jnp.float32))
      after = LSTMState(cell, output)
      if real is not None:
        after = jax.tree.map(lambda new, old: jnp.where(real[:, None], new, old), after, state)
        output = jnp.where(real[:, None], output, 0)
      return after, output.astype(config.dtype)

    by_time = (gates.swapaxes(0, 1), None if valid is None else valid.swapaxes(0, 1))
    state, outputs = jax.lax.scan(advance, state, by_time)
    return outputs.swapaxes(0, 1), state

  def _clipped(self, x: jax.Array) -> jax.Array:
    return x if self.clip is None else jnp.clip(x, -self.clip, self.clip)


def uniform(bound: float) -> nn.initializers.Initializer:
  """Returns an initializer between -bound and bound."""
  return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


def _forget_bias(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
  """Starts with open forget gates: bias 1 (Jozefowicz et al. 2015), as in ELMo."""
  quarter = shape[0] // 4
  return jnp.zeros(shape, dtype).at[quarter : 2 * quarter].set(1)


def continued(carry: tuple[LSTMState, ...], batch: Mapping[str, jax.Array]) -> tuple[LSTMState, ...]:
  """Returns the states carried from the last batch: row b of this one continues its row b.

  Rows that start a new text, of which batch["decoder_continues"], [rows], is 0, start with zeros. Gradients end at the
  start of a batch.
  """
  kept = batch["decoder_continues"].astype(jnp.float32)[:, None]
  return jax.tree.map(lambda x: jax.lax.stop_gradient(x) * kept, carry)
