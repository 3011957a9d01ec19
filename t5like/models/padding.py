"""Which tokens of an encoder's rows are real."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp


def encoder_valid(batch: Mapping[str, jax.Array]) -> jax.Array:
  """[batch, encoder length]: True on real tokens.

  By `encoder_segment_ids` where given (packed rows), else by `encoder_lengths` [batch] (prompts, in which an id that
  means padding may be part of the text), else wherever the id is not 0.
  """
  tokens = batch["encoder_input_tokens"]
  if "encoder_segment_ids" in batch:
    return batch["encoder_segment_ids"] > 0
  if "encoder_lengths" in batch:
    return jnp.arange(tokens.shape[1])[None, :] < batch["encoder_lengths"][:, None]
  return tokens > 0
