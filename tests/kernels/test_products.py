"""Products of few rows that are added to a residual connection: the GPU's kernel in Pallas's interpreter, and XLA's."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels.gpu import residual_product as gpu
from t5like.kernels.products import residual_product

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("rows", "with_bias"), [(5, True), (64, False), (100, True), (256, False)])
def test_the_gpus_kernel_adds_product_bias_and_residual(rows, with_bias):
  """The result is the exact sum, rounded once."""
  shapes = (rows, 64), (rows, 256), (256, 64), *([(64,)] if with_bias else [])
  arrays = [jnp.asarray(RNG.normal(size=shape), jnp.bfloat16) for shape in shapes]
  assert gpu.unsupported_reason(*arrays[1:3]) is None
  got = gpu.residual_product(*arrays, interpret=True)
  residual, x, kernel, *bias = (np.asarray(array, np.float64) for array in arrays)
  np.testing.assert_allclose(got.astype(jnp.float32), residual + x @ kernel + sum(bias), rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize(
  ("x", "kernel", "reason"),
  [
    ((513, 256), (256, 64), "513 rows of 256"),
    ((64, 2048), (2048, 64), "64 rows of 2048"),
    ((64, 192), (192, 64), r"\(192, 64\)"),
    ((64, 256), (256, 80), r"\(256, 80\)"),
  ],
)  # fmt: skip
def test_products_that_xla_computes(x, kernel, reason):
  assert re.search(reason, gpu.unsupported_reason(jnp.zeros(x, jnp.bfloat16), jnp.zeros(kernel, jnp.bfloat16)))


def test_float32_is_not_rounded_to_fewer_bits():
  assert "float32" in gpu.unsupported_reason(jnp.zeros((8, 256)), jnp.zeros((256, 64)))


def test_the_sum_without_a_gpu():
  residual, x, kernel, bias = (RNG.normal(size=s).astype(np.float32) for s in ((2, 3, 8), (2, 3, 4), (4, 8), (8,)))
  np.testing.assert_allclose(residual_product(residual, x, kernel, bias), residual + x @ kernel + bias, rtol=1e-5)
