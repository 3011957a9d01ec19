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


def prepend(x: jax.Array | None, count: int, value: int | bool = 1) -> jax.Array | None:
  """Returns x [batch, length] with `count` columns of a value before it: a learned prompt's, which is never padding."""
  if x is None or not count:
    return x
  return jnp.pad(x, ((0, 0), (count, 0)), constant_values=value)
