"""Sinusoidal and rotary positions. Learned positions are in embedder.py, relative position biases in stack.py."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from t5like.models.config import TransformerConfig


def sinusoids(positions: jax.Array, width: int) -> jax.Array:
  """Returns sines, then cosines, at wavelengths 2 pi .. 10000 2 pi (Vaswani et al. 2017, 3.5): [..., width]."""
  angles = _angles(positions, _frequencies(width, 10_000.0))  # [..., width / 2]
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def rotate(x: jax.Array, positions: jax.Array, frequencies: np.ndarray) -> jax.Array:
  """Applies rotary positions (Su et al. 2021): rotates feature pairs (i, i + kv/2) by position-dependent angles.

  x [batch, length, heads, kv]; positions [batch or 1, length]; frequencies [kv / 2].
  """
  angles = _angles(positions, frequencies)[:, :, None, :]  # [batch, length, 1, kv / 2]
  sine, cosine = jnp.sin(angles), jnp.cos(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
  return rotated.astype(x.dtype)


def rotary_frequencies(config: TransformerConfig) -> np.ndarray:
  """Returns the angles per position of feature pairs, [kv / 2], scaled as configured.

  "llama3" (Grattafiori et al. 2024, as in their code): wavelengths of more than original length / low factor positions
  are stretched by the factor, those of less than original length / high factor are kept, others interpolated.
  """
  frequencies, factor = _frequencies(config.head_dim, config.rotary_base), config.rotary_factor
  if config.rotary_scaling == "linear":
    return frequencies / np.float32(factor)
  if config.rotary_scaling == "llama3":
    low, high = config.rotary_low_factor, config.rotary_high_factor
    turns = config.rotary_original_length * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return ((1.0 - kept) * frequencies / factor + kept * frequencies).astype(np.float32)
  return frequencies


def _frequencies(width: int, base: float) -> np.ndarray:
  return np.float32(base) ** -(np.arange(0, width, 2, dtype=np.float32) / np.float32(width))  # [width / 2]


def _angles(positions: jax.Array, frequencies: np.ndarray) -> jax.Array:
  return jnp.einsum("...,f->...f", positions.astype(jnp.float32), frequencies)
