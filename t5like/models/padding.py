"""The padding of an encoder: its mask, ids and positions."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t5like.models.config import TransformerConfig


def encoder_valid(batch: Mapping[str, jax.Array], padding_id: int = 0) -> jax.Array:
  """Returns [batch, encoder length], True on tokens and False on padding.

  Uses `encoder_segment_ids` (packed rows) if present, else `encoder_lengths` [batch] (prompts, whose text may contain
  the padding id), else the model's padding id.
  """
  tokens = batch["encoder_input_tokens"]
  if "encoder_segment_ids" in batch:
    return batch["encoder_segment_ids"] > 0
  if "encoder_lengths" in batch:
    return jnp.arange(tokens.shape[1])[None, :] < batch["encoder_lengths"][:, None]
  return tokens != padding_id


def as_in_pretraining(
  config: TransformerConfig, tokens: jax.Array, positions: jax.Array | None, valid: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
  """Returns tokens and positions whose padding is the model's own, for models whose padding is not id 0.

  Batches are padded with 0. Padding is never attended to, but it is scored as a possible end of an answer span.
  """
  if config.padding_id:
    tokens = jnp.where(valid, tokens, config.padding_id)
  if config.position_offset:
    positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :] if positions is None else positions
    positions = jnp.where(valid, positions, -1)
  return tokens, positions


def prepend(x: jax.Array | None, count: int, value: int | bool = 1) -> jax.Array | None:
  """Returns x [batch, length] with `count` columns of a value before it: a learned prompt's, which is never padding."""
  if x is None or not count:
    return x
  return jnp.pad(x, ((0, 0), (count, 0)), constant_values=value)
