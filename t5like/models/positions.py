"""Sinusoidal and rotary positions. Learned positions are in embedder.py, relative position biases in stack.py."""

import jax
import jax.numpy as jnp


def sinusoids(positions: jax.Array, width: int) -> jax.Array:
  """Returns sines, then cosines, at wavelengths 2 pi .. 10000 2 pi (Vaswani et al. 2017, 3.5): [..., width]."""
  angles = _angles(positions, width, 10_000.0)  # [..., width / 2]
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def rotate(x: jax.Array, positions: jax.Array, base: float) -> jax.Array:
  """Applies rotary positions (Su et al. 2021): rotates feature pairs (i, i + kv/2) by position-dependent angles.

  x [batch, length, heads, kv]; positions [batch or 1, length].
  """
  angles = _angles(positions, x.shape[-1], base)[:, :, None, :]  # [batch, length, 1, kv / 2]
  sine, cosine = jnp.sin(angles), jnp.cos(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
  return rotated.astype(x.dtype)


def _angles(positions: jax.Array, width: int, base: float) -> jax.Array:
  frequencies = base ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)  # [width / 2]
  return jnp.einsum("...,f->...f", positions.astype(jnp.float32), frequencies)
