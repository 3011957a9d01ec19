"""Memory-efficient cross entropy: the logits are the only vocabulary-sized array kept for the backward pass."""

import functools
import math

import jax
import jax.numpy as jnp

from t5like.kernels.platform import is_single_gpu, target_platform

# The least number of logits for the kernel: XLA fuses smaller reductions with the operations around them.
_LARGE = 2**24


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def cross_entropy(
  logits: jax.Array, targets: jax.Array, z_loss: float = 0.0, label_smoothing: float = 0.0, vocab: int | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the loss, its z-loss part and the most probable token, for logits [..., vocab] and targets [...].

  Columns of logits from `vocab` on are padding (default: there is none).

  The z-loss, `z_loss * log(Z)^2`, keeps the normalizer near 1 and with it bfloat16 logits in range
  (Raffel et al.; 1e-4). Label smoothing distributes that fraction of the target evenly over the other tokens; the
  entropy of the smoothed target is subtracted, so that a perfect prediction has loss 0. A target outside the
  vocabulary gives NaN.

  The backward pass rereads the logits and writes their gradient in the same dtype: no probabilities are kept, and no
  float32 copy of bfloat16 logits is ever materialized.
  """
  return _forward(logits, targets, z_loss, label_smoothing, vocab)[0]


def _forward(logits, targets, z_loss, label_smoothing, vocab):
  vocab = vocab or logits.shape[-1]
  log_z, target_logit, best = _summarize(logits, targets, vocab)
  loss = jnp.where((targets >= 0) & (targets < vocab), log_z - target_logit, jnp.nan)
  if label_smoothing:
    confidence, spread = _smoothed(vocab, label_smoothing)
    others = vocab * log_z - jnp.sum(logits[..., :vocab].astype(jnp.float32), axis=-1) - loss
    entropy = -(confidence * math.log(confidence) + (vocab - 1) * spread * math.log(spread))
    loss = confidence * loss + spread * others - entropy
  z_part = z_loss * jnp.square(log_z)
  return (loss + z_part, z_part, best), (logits, targets, log_z)


def _backward(z_loss, label_smoothing, vocab, residuals, gradients):
  logits, targets, log_z = residuals
  d_loss, d_z, _ = gradients  # [...]
  vocab = vocab or logits.shape[-1]
  confidence, spread = _smoothed(vocab, label_smoothing)
  # The smoothed target sums to 1, and the derivative of log(Z)^2 is 2 log(Z) softmax.
  d_softmax = d_loss + 2.0 * z_loss * log_z * (d_loss + d_z)
  softmax = jnp.exp(logits.astype(jnp.float32) - log_z[..., None])
  target = jnp.where(_is_target(logits, targets), confidence, spread)
  d_logits = d_softmax[..., None] * softmax - d_loss[..., None] * target
  if vocab < logits.shape[-1]:
    d_logits = jnp.where(jnp.arange(logits.shape[-1]) < vocab, d_logits, 0.0)
  return d_logits.astype(logits.dtype), None


cross_entropy.defvjp(_forward, _backward)


def _summarize(logits: jax.Array, targets: jax.Array, vocab: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the log-sum-exp, the target's logit and the argmax of the first `vocab` entries of the last axis."""
  if is_single_gpu() and logits.size >= _LARGE:
    from t5like.kernels.gpu.log_sum_exp import log_sum_exp

    log_z, best = (x.reshape(targets.shape) for x in log_sum_exp(logits.reshape(-1, logits.shape[-1]), vocab))
    # A gather, because the masked sum below would read all logits once more.
    at = jnp.clip(targets, 0, vocab - 1)[..., None]
    return log_z, jnp.take_along_axis(logits, at, axis=-1)[..., 0].astype(jnp.float32), best
  logits = logits[..., :vocab]
  values = logits.astype(jnp.float32)
  target_logit = jnp.sum(jnp.where(_is_target(logits, targets), values, 0.0), axis=-1)
  return _log_sum_exp(values), target_logit, jnp.argmax(logits, axis=-1).astype(jnp.int32)


def _log_sum_exp(values: jax.Array) -> jax.Array:
  """Returns log(sum(exp(values))) over the last axis; on GPUs in one pass (Milakov and Gimelshein 2018)."""
  if target_platform() != "gpu":
    return jax.nn.logsumexp(values, axis=-1)

  def combine(first, second):
    (max_1, sum_1), (max_2, sum_2) = first, second
    largest = jnp.maximum(max_1, max_2)
    factor = jnp.exp(jnp.minimum(max_1, max_2) - largest)
    return largest, jnp.where(max_1 > max_2, sum_1 + sum_2 * factor, sum_1 * factor + sum_2)

  initial = jnp.finfo(values.dtype).min, jnp.zeros((), values.dtype)
  largest, total = jax.lax.reduce((values, jnp.ones_like(values)), initial, combine, (values.ndim - 1,))
  return largest + jnp.log(total)


def _is_target(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns a one-hot mask [..., vocab]: the gradient of a select is cheap, that of an index is a scatter."""
  return jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1) == targets[..., None]


def _smoothed(vocab: int, label_smoothing: float) -> tuple[float, float]:
  """Returns the target probability of the correct token and of every other one."""
  return 1.0 - label_smoothing, label_smoothing / max(vocab - 1, 1)
