"""Cross entropy of integer targets."""

import math

import jax
import jax.numpy as jnp


def cross_entropy(
  logits: jax.Array, targets: jax.Array, z_loss: float = 0.0, label_smoothing: float = 0.0
) -> tuple[jax.Array, jax.Array]:
  """Loss and its z-loss part for logits [..., vocab] and targets [...], both [...] float32.

  The z-loss, `z_loss * log(Z)^2`, keeps the normaliser near 1 and with it bfloat16 logits in range
  (Raffel et al.; 1e-4). Label smoothing spreads that share of the target evenly over the vocabulary,
  less its own entropy, so that a perfect prediction has loss 0.
  """
  logits = logits.astype(jnp.float32)
  vocab = logits.shape[-1]
  log_z = jax.nn.logsumexp(logits, axis=-1)
  # A comparison instead of a gather: its gradient is a select, not a scatter into [..., vocab].
  is_target = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1) == targets[..., None]
  target_logit = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
  loss = log_z - target_logit
  if label_smoothing:
    confidence, spread = 1.0 - label_smoothing, label_smoothing / (vocab - 1)
    others = vocab * log_z - jnp.sum(logits, axis=-1) - loss
    entropy = -(confidence * math.log(confidence) + (vocab - 1) * spread * math.log(spread))
    loss = confidence * loss + spread * others - entropy
  z_part = z_loss * jnp.square(log_z)
  return loss + z_part, z_part
