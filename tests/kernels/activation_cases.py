"""Activations with and without a gate and dropout, and their gradients by plain JAX in float32."""

import jax
import jax.numpy as jnp
import numpy as np

from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.kernels.dropout import DrawnDropout


def inputs(gated: bool, rate: float, rows: int, columns: int, dtype=jnp.float32):
  """Returns x, the gradient of the result, and the dropout."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(rows, columns * (1 + gated)))
  dropout = DrawnDropout.draw((rows, columns), rate, jax.random.key(1)) if rate else None
  return jnp.asarray(x, dtype), jnp.asarray(rng.normal(size=(rows, columns)), dtype), dropout


def plain(name: str, x: jax.Array, dropout: DrawnDropout | None, gated: bool) -> jax.Array:
  half = x.shape[-1] // 2
  h = ACTIVATIONS[name](x[..., :half]) * x[..., half:] if gated else ACTIVATIONS[name](x)
  return h if dropout is None else dropout(h)


def plain_gradient(name: str, x: jax.Array, gradient: jax.Array, dropout, gated: bool) -> np.ndarray:
  """Returns the gradient of x in float32."""
  x, gradient = x.astype(jnp.float32), gradient.astype(jnp.float32)
  pull_back = jax.jit(lambda x, gradient: jax.vjp(lambda x: plain(name, x, dropout, gated), x)[1](gradient)[0])
  return np.asarray(pull_back(x, gradient))
