"""The state that a model carries from batch to batch: row b of the next batch continues row b of this one."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t5like.models.recurrent.lstm import LSTMState


def continued(carry: tuple[LSTMState, ...], batch: Mapping[str, jax.Array]) -> tuple[LSTMState, ...]:
  """Returns the carried states, zeros for rows that start a new text. Gradients end at the start of a batch.

  batch["decoder_continues"], [rows], is 0 for rows that start a new text, and 1 for others.
  """
  kept = batch["decoder_continues"].astype(jnp.float32)[:, None]
  return jax.tree.map(lambda x: jax.lax.stop_gradient(x) * kept, carry)
