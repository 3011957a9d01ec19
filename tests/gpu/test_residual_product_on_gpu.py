"""The product of few rows that is added to a residual connection, on a GPU, against float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels.gpu.residual_product import unsupported_reason
from t5like.kernels.products import residual_product


@pytest.mark.parametrize(
  ("rows", "depth", "columns"), [(5, 128, 96), (64, 768, 768), (100, 512, 1024), (256, 1024, 256)]
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_sum_of_product_bias_and_residual(rows, depth, columns, with_bias):
  shapes = (rows, columns), (rows, depth), (depth, columns), *([(columns,)] if with_bias else [])
  keys = jax.random.split(jax.random.key(0), len(shapes))
  arrays = [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)]
  assert unsupported_reason(*arrays[1:3]) is None
  got = jax.jit(residual_product)(*arrays)
  residual, x, kernel, *bias = (np.asarray(array, np.float64) for array in arrays)
  expected = residual + x @ kernel + sum(bias)
  np.testing.assert_allclose(got.astype(jnp.float32), expected, rtol=2**-8, atol=2**-6)
