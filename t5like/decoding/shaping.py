"""What is done to logits before a token is taken from them. All take and give [rows, vocab] float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

NEVER = -jnp.inf  # the logit of a token that must not come


def penalize_repetition(logits: jax.Array, tokens: jax.Array, penalty: float) -> jax.Array:
  """Divides positive and multiplies negative logits of `tokens` [rows, n]; those below 0 stand for none."""
  places = jnp.where(tokens < 0, logits.shape[1], tokens)
  values = jnp.take_along_axis(logits, places, axis=1, mode="clip")
  values = jnp.where(values < 0, values * penalty, values / penalty)
  put = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))
  return put(logits, places, values)


def forbid(logits: jax.Array, token: int, where: jax.Array) -> jax.Array:
  """Takes `token` from the rows where the condition [] or [rows] holds."""
  here = jnp.arange(logits.shape[1])[None, :] == token
  return jnp.where(here & jnp.broadcast_to(where, logits.shape[:1])[:, None], NEVER, logits)


def keep_likeliest(logits: jax.Array, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> jax.Array:
  """Takes away all but the likeliest tokens: the k first, of those the nucleus, and none far below the best.

  Each limit is a lowest logit, so tokens with the same logit stay or go together, and one of them always stays.
  """
  vocab = logits.shape[1]
  lowest = jnp.full((logits.shape[0], 1), NEVER, logits.dtype)
  if 0 < top_k < vocab or top_p < 1.0:
    ranked, _ = jax.lax.top_k(logits, min(top_k or vocab, vocab))  # [rows, k], falling
    lowest = ranked[:, -1:]
    if top_p < 1.0:
      probabilities = jax.nn.softmax(ranked, axis=1)
      before = jnp.cumsum(probabilities, axis=1) - probabilities  # of all that are likelier
      count = jnp.sum(before < top_p, axis=1, keepdims=True)
      lowest = jnp.take_along_axis(ranked, jnp.maximum(count, 1) - 1, axis=1)
  if min_p > 0.0:
    lowest = jnp.maximum(lowest, jnp.max(logits, axis=1, keepdims=True) + jnp.log(min_p))
  return jnp.where(logits >= lowest, logits, NEVER)
