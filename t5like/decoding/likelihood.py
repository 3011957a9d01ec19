"""Log-likelihoods of given tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def log_likelihoods(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the log-probability of each target, [...] float32, given logits [..., vocab] and targets [...]."""
  logits = logits.astype(jnp.float32)
  chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  return chosen - jax.nn.logsumexp(logits, axis=-1)
