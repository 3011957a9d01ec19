"""Learning rates as functions of the step."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Schedule = Callable[[jax.Array], jax.Array]


def constant_rate(value: float = 1e-3) -> Schedule:
  """The same rate at every step: T5's fine-tuning."""
  return lambda step: jnp.full((), value, jnp.float32)


def inverse_square_root(scale: float = 1.0, warmup_steps: int = 10_000) -> Schedule:
  """scale / sqrt(max(step, warmup_steps)): T5's pre-training, flat at first and then falling."""
  return lambda step: scale * jax.lax.rsqrt(jnp.maximum(step, warmup_steps).astype(jnp.float32))


def warmup_linear(peak: float = 1e-3, warmup_steps: int = 1_000, total_steps: int = 100_000) -> Schedule:
  """Up from 0 over `warmup_steps`, then down in a straight line to 0 at `total_steps`: BERT's."""

  def rate(step):
    step = step.astype(jnp.float32)
    up = (step + 1) / max(warmup_steps, 1)
    down = (total_steps - step) / max(total_steps - warmup_steps, 1)
    return peak * jnp.clip(jnp.minimum(up, down), 0.0, 1.0)

  return rate
