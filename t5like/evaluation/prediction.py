"""Decoded answers of a model."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from t5like import decoding, parallel


class Predictor:
  """Greedy answers for batches of one shape, compiled once, sharded as in training."""

  def __init__(self, model: nn.Module, mesh: Mesh, max_length: int, eos_id: int):
    def predict(params, batch):
      variables = {"params": params}

      def step(tokens, cache):
        return model.apply(variables, tokens, cache, method="decode_step")

      cache = model.apply(variables, batch, max_length, method="start_decoding")
      first = model.apply(variables, batch, method="first_tokens")
      return decoding.greedy(step, cache, first, max_length, eos_id)

    self._mesh = mesh
    self._rows = parallel.batch_sharding(mesh)
    self._predict = jax.jit(predict, out_shardings=parallel.replicated(mesh))

  def __call__(self, params: Any, prompts: dict[str, np.ndarray]) -> np.ndarray:
    """Answers [batch, max_length] to prompts as `start_decoding` takes them."""
    placed = {name: jax.device_put(array, self._rows) for name, array in prompts.items()}
    with parallel.sharding_context(self._mesh):
      return np.asarray(self._predict(params, placed))
