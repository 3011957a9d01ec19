"""Parameters for tests that need any values: compiling an initializer takes longer than most of them."""

import flax.linen as nn
import jax
import numpy as np

from t5like.parallel import parameter_shapes


def random_parameters(model: nn.Module, batch: dict, seed: int = 0, stddev: float = 0.3) -> dict:
  """Draws all arrays from numpy's normal distribution, norms and biases included."""
  rng = np.random.default_rng(seed)
  shapes = nn.unbox(parameter_shapes(model, batch))
  return jax.tree.map(lambda x: rng.normal(0.0, stddev, x.shape).astype(x.dtype), shapes)
