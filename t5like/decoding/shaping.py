"""Logits processing: repetitions, forbidden and forced tokens, top-k, top-p, min-p. All map [rows, vocab] float32."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

FORBIDDEN = -jnp.inf

_PART = 128  # entries of a row in `largest`


def penalize_repetition(logits: jax.Array, tokens: jax.Array, penalty: float) -> jax.Array:
  """Divides positive and multiplies negative logits of `tokens` [rows, n] by `penalty`; ignores negative ids."""
  indices = jnp.where(tokens < 0, logits.shape[1], tokens)
  values = jnp.take_along_axis(logits, indices, axis=1, mode="clip")
  values = jnp.where(values < 0, values * penalty, values / penalty)
  scatter = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))
  return scatter(logits, indices, values)


def forbid(logits: jax.Array, token: int, where: jax.Array) -> jax.Array:
  """Forbids `token` in the rows where the condition [] or [rows] holds."""
  is_token = jnp.arange(logits.shape[1])[None, :] == token
  return jnp.where(is_token & jnp.broadcast_to(where, logits.shape[:1])[:, None], FORBIDDEN, logits)


def forbid_sequences(
  logits: jax.Array, tokens: jax.Array, length: jax.Array, sequences: Sequence[tuple[int, ...]]
) -> jax.Array:
  """Forbids tokens that would complete one of `sequences` after the first `length` [] of `tokens` [rows, most]."""
  longest = max(map(len, sequences)) - 1
  before = jnp.pad(tokens, ((0, 0), (longest, 0)), constant_values=-1)  # its entry i + longest is token i
  newest = jax.lax.dynamic_slice_in_dim(before, length, longest, axis=1)
  scatter = jax.vmap(lambda row, at: row.at[at].set(FORBIDDEN, mode="drop"))
  for size in sorted({len(sequence) for sequence in sequences}):
    same = jnp.asarray([sequence for sequence in sequences if len(sequence) == size], jnp.int32)  # [count, size]
    completes = jnp.all(newest[:, None, longest - size + 1 :] == same[None, :, :-1], axis=2)  # [rows, count]
    logits = scatter(logits, jnp.where(completes, same[None, :, -1], logits.shape[1]))
  return logits


def force(logits: jax.Array, token: int, where: jax.Array) -> jax.Array:
  """Gives `token` the logit and log-probability 0, and forbids the others, in the rows where the condition holds."""
  only = jnp.where(jnp.arange(logits.shape[1])[None, :] == token, 0.0, FORBIDDEN)
  return jnp.where(jnp.broadcast_to(where, logits.shape[:1])[:, None], only, logits)


def forbid_repeated_ngrams(logits: jax.Array, tokens: jax.Array, length: jax.Array, n: int) -> jax.Array:
  """Forbids tokens that would repeat a sequence of `n` tokens among the first `length` [] of `tokens` [rows, most].

  Negative ids are padding, before the tokens of a row.
  """
  before = jnp.pad(tokens, ((0, 0), (n - 1, 0)), constant_values=-1)  # its entry i + n - 1 is token i
  newest = jax.lax.dynamic_slice_in_dim(before, length, n - 1, axis=1)
  # Token i is forbidden where the n - 1 tokens before it are the newest ones.
  seen = (jnp.arange(tokens.shape[1])[None, :] < length) & (tokens >= 0)
  for k in range(n - 1):
    column = newest[:, k : k + 1]
    seen &= (before[:, k : k + tokens.shape[1]] == column) & (column >= 0)
  scatter = jax.vmap(lambda row, at: row.at[at].set(FORBIDDEN, mode="drop"))
  return scatter(logits, jnp.where(seen, tokens, logits.shape[1]))


def filter_logits(logits: jax.Array, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> jax.Array:
  """Applies top-k, then top-p, then min-p filtering.

  Each filter is a threshold on the logits, so tokens with equal logits are kept or dropped together, and at least one
  token is kept.
  """
  vocab = logits.shape[1]
  threshold = jnp.full((logits.shape[0], 1), FORBIDDEN, logits.dtype)
  if 0 < top_k < vocab or top_p < 1.0:
    ranked, _ = largest(logits, min(top_k or vocab, vocab))  # [rows, k], descending
    threshold = ranked[:, -1:]
    if top_p < 1.0:
      probabilities = jax.nn.softmax(ranked, axis=1)
      before = jnp.cumsum(probabilities, axis=1) - probabilities  # total of all likelier tokens
      count = jnp.sum(before < top_p, axis=1, keepdims=True)
      threshold = jnp.take_along_axis(ranked, jnp.maximum(count, 1) - 1, axis=1)
  if min_p > 0.0:
    threshold = jnp.maximum(threshold, jnp.max(logits, axis=1, keepdims=True) + jnp.log(min_p))
  return jnp.where(logits >= threshold, logits, FORBIDDEN)


def largest(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
  """Returns the k largest entries of each row of [rows, n] and their indices, as `lax.top_k` does.

  They are in the k parts with the largest maxima, so that only these are sorted.
  """
  rows, n = x.shape
  count = -(-n // _PART)
  if count < 2 * k:
    return jax.lax.top_k(x, k)
  parts = jnp.pad(x, ((0, 0), (0, count * _PART - n)), constant_values=-jnp.inf).reshape(rows, count, _PART)
  chosen = jnp.sort(jax.lax.top_k(jnp.max(parts, axis=2), k)[1], axis=1)  # in order, so that the first of equals wins
  best, at = jax.lax.top_k(jnp.take_along_axis(parts, chosen[:, :, None], axis=1).reshape(rows, k * _PART), k)
  return best, jnp.take_along_axis(chosen, at // _PART, axis=1) * _PART + at % _PART
