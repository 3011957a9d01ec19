"""Greedy search: the likeliest token at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# (tokens [batch], cache) -> (logits [batch, vocab] of what follows, cache)
Step = Callable[[jax.Array, Any], tuple[jax.Array, Any]]


def greedy(step: Step, cache: Any, first_tokens: jax.Array, max_length: int, eos_id: int, pad_id: int = 0) -> jax.Array:
  """Tokens [batch, max_length], each row ended by `eos_id` and padded after it.

  One compiled loop that stops as soon as every row has ended.
  """
  rows = first_tokens.shape[0]

  def unfinished(carry):
    position, _, _, ended, _ = carry
    return (position < max_length) & ~jnp.all(ended)

  def advance(carry):
    position, tokens, cache, ended, output = carry
    logits, cache = step(tokens, cache)
    tokens = jnp.where(ended, pad_id, jnp.argmax(logits, axis=-1).astype(jnp.int32))
    output = jax.lax.dynamic_update_slice(output, tokens[:, None], (0, position))
    return position + 1, tokens, cache, ended | (tokens == eos_id), output

  start = (
    jnp.zeros((), jnp.int32),
    first_tokens.astype(jnp.int32),
    cache,
    jnp.zeros((rows,), bool),
    jnp.full((rows, max_length), pad_id, jnp.int32),
  )
  return jax.lax.while_loop(unfinished, advance, start)[-1]
