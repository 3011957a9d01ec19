"""Matrix products: of low-precision operands with a result in higher precision, and added to a residual connection."""

import functools

import jax
import jax.numpy as jnp

from t5like.kernels.activations import add_bias
from t5like.kernels.platform import is_single_gpu, target_platform


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def product(equation: str, x: jax.Array, y: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Computes an einsum with a result of `dtype`; its backward pass multiplies in the dtype of the operands.

  By default, the gradient of a bfloat16 product with a float32 result is a float32 product: an eighth of the speed,
  and no more precise than its bfloat16 factors.
  """
  if target_platform() == "cpu":  # XLA lacks some of these products there; in `dtype` the result is the same
    x, y = x.astype(dtype), y.astype(dtype)
  return jnp.einsum(equation, x, y, preferred_element_type=dtype)


def _forward(equation, x, y, dtype):
  return product(equation, x, y, dtype), (x, y)


def _backward(equation, dtype, residuals, gradient):
  x, y = residuals
  _, vjp = jax.vjp(functools.partial(jnp.einsum, equation), x, y)
  return vjp(gradient.astype(jnp.result_type(x, y)))


product.defvjp(_forward, _backward)


def residual_product(residual: jax.Array, x: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
  """Returns residual [..., out] + x [..., in] kernel [in, out] + bias [out]: with one GPU kernel for few rows."""
  rows = x.reshape(-1, x.shape[-1])
  if is_single_gpu():
    from t5like.kernels.gpu import residual_product as gpu

    if gpu.unsupported_reason(rows, kernel) is None:
      return gpu.residual_product(residual.reshape(len(rows), -1), rows, kernel, bias).reshape(residual.shape)
  y = x @ kernel
  return residual + (y if bias is None else add_bias(y, bias))
