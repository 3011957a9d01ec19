"""Parameters for tests that need any values: compiling an initializer takes longer than most of them."""

import flax.linen as nn
import jax
import numpy as np


def random_parameters(model: nn.Module, batch: dict) -> dict:
  """Draws all arrays from numpy's normal distribution with a standard deviation of 0.3, norms and biases included."""
  shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))["params"]
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: rng.normal(0.0, 0.3, x.shape).astype(x.dtype), shapes)
