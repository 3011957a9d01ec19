"""Cross entropy of integer targets that keeps nothing of the vocabulary's size but the logits."""

import functools
import math

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def cross_entropy(
  logits: jax.Array, targets: jax.Array, z_loss: float = 0.0, label_smoothing: float = 0.0
) -> tuple[jax.Array, jax.Array]:
  """Loss and its z-loss part for logits [..., vocab] and targets [...], both [...] float32.

  The z-loss, `z_loss * log(Z)^2`, keeps the normalizer near 1 and with it bfloat16 logits in range
  (Raffel et al.; 1e-4). Label smoothing spreads that share of the target evenly over the vocabulary,
  less its own entropy, so that a perfect prediction has loss 0. A target beyond the vocabulary has no loss: NaN.

  The backward pass reads the logits once more, in their own dtype, and writes their gradient in it: no
  probabilities are kept, and no float32 copy of bfloat16 logits is ever written.
  """
  return _forward(logits, targets, z_loss, label_smoothing)[0]


def _forward(logits, targets, z_loss, label_smoothing):
  values = logits.astype(jnp.float32)
  vocab = logits.shape[-1]
  log_z = jax.nn.logsumexp(values, axis=-1)
  target_logit = jnp.sum(jnp.where(_is_target(logits, targets), values, 0.0), axis=-1)
  loss = jnp.where((targets >= 0) & (targets < vocab), log_z - target_logit, jnp.nan)
  if label_smoothing:
    confidence, spread = _smoothed(vocab, label_smoothing)
    others = vocab * log_z - jnp.sum(values, axis=-1) - loss
    entropy = -(confidence * math.log(confidence) + (vocab - 1) * spread * math.log(spread))
    loss = confidence * loss + spread * others - entropy
  z_part = z_loss * jnp.square(log_z)
  return (loss + z_part, z_part), (logits, targets, log_z)


def _backward(z_loss, label_smoothing, kept, gradients):
  logits, targets, log_z = kept
  of_loss, of_z = gradients  # [...]
  confidence, spread = _smoothed(logits.shape[-1], label_smoothing)
  # Of the softmax: the smoothed target sums to 1, and d log(Z)^2 is 2 log(Z) softmax.
  of_softmax = of_loss + 2.0 * z_loss * log_z * (of_loss + of_z)
  softmax = jnp.exp(logits.astype(jnp.float32) - log_z[..., None])
  target = jnp.where(_is_target(logits, targets), confidence, spread)
  return (of_softmax[..., None] * softmax - of_loss[..., None] * target).astype(logits.dtype), None


cross_entropy.defvjp(_forward, _backward)


def _is_target(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """A comparison instead of an index: its gradient is a select, not a scatter into [..., vocab]."""
  return jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1) == targets[..., None]


def _smoothed(vocab: int, label_smoothing: float) -> tuple[float, float]:
  """What the target token gets, and what each of the others."""
  return 1.0 - label_smoothing, label_smoothing / max(vocab - 1, 1)
