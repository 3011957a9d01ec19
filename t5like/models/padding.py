"""The padding mask of an encoder."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp


def encoder_valid(batch: Mapping[str, jax.Array]) -> jax.Array:
  """Returns [batch, encoder length], True on tokens and False on padding.

  Uses `encoder_segment_ids` (packed rows) if present, else `encoder_lengths` [batch] (prompts, whose text may contain
  the padding id), else treats id 0 as padding.
  """
  tokens = batch["encoder_input_tokens"]
  if "encoder_segment_ids" in batch:
    return batch["encoder_segment_ids"] > 0
  if "encoder_lengths" in batch:
    return jnp.arange(tokens.shape[1])[None, :] < batch["encoder_lengths"][:, None]
  return tokens > 0
