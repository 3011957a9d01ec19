"""Kernels of activations, gates and biases on a GPU, compared with plain JAX in float32."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from activation_cases import inputs, plain_gradient

from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.kernels.gpu.activation import activation_gradient, column_sums


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_gradients_equal_plain_jax(dtype):
  """All activations in one test, a gate of them with dropout: to start a process for each takes longer than they do."""
  wrong = {}
  for name, (gated, rate) in itertools.product(ACTIVATIONS, ((False, 0.0), (True, 0.3))):
    x, gradient, dropout = inputs(gated, rate, rows=3001, columns=700, dtype=dtype)
    got, sums = activation_gradient(ACTIVATIONS[name], x, gradient, gated, not gated, dropout)
    expected = plain_gradient(name, x, gradient, dropout, gated)
    pairs = {"x": (got, expected)} | ({} if gated else {"sums": (sums, expected.sum(0))})
    for part, (a, b) in pairs.items():
      error = np.linalg.norm(np.asarray(a, np.float64) - b) / np.linalg.norm(b)
      if not error < (1e-5 if dtype == jnp.float32 else 0.003):
        wrong[name, gated, rate, part] = error
  assert not wrong


def test_column_sums_of_bfloat16_are_float32():
  x = jnp.asarray(np.random.default_rng(0).normal(size=(50_001, 3_100)) + 0.1, jnp.bfloat16)
  expected = np.asarray(x, np.float64).sum(0)
  np.testing.assert_allclose(column_sums(x), expected, rtol=1e-4, atol=0.01)
