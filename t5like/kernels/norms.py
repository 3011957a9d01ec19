"""RMS and layer norm over the last axis, in float32 whatever the inputs are."""

import functools

import jax
import jax.numpy as jnp

from t5like.kernels.platform import can_write_gpu_kernels, target_platform


def norm(
  x: jax.Array, scale: jax.Array, bias: jax.Array | None, *, epsilon: float, centered: bool, dtype: jnp.dtype,
  with_input: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:  # fmt: skip
  """x [..., width] over its root mean square, with `centered` around 0 first; times scale, plus bias; of `dtype`.

  `with_input`, x too, for the residual connection: on a GPU both gradients are added up inside one kernel.
  """
  if _has_kernel(x):
    return _on_gpu(x, *_vectors(scale, bias), epsilon, centered, dtype, with_input, False)
  y = _plain(x, scale, bias, epsilon, centered, dtype)
  return (y, x) if with_input else y


def _has_kernel(x: jax.Array) -> bool:
  """One GPU: the partitioner cannot look inside a kernel."""
  if target_platform() != "gpu" or jax.sharding.get_abstract_mesh().size > 1 or not can_write_gpu_kernels():
    return False
  from t5like.kernels.gpu.norm import obstacle

  return obstacle(x) is None


def _vectors(scale, bias):
  return scale.astype(jnp.float32), None if bias is None else bias.astype(jnp.float32)


def _plain(x, scale, bias, epsilon, centered, dtype):
  scale, bias = _vectors(scale, bias)
  row = (1,) * (x.ndim - 1) + x.shape[-1:]
  y = x.astype(jnp.float32)
  if centered:
    y = y - jnp.mean(y, axis=-1, keepdims=True)
  y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + epsilon) * scale.reshape(row)
  y = y if bias is None else y + bias.reshape(row)
  return y.astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6, 7))
def _on_gpu(x, scale, bias, epsilon, centered, dtype, with_input, interpret):
  return _forward(x, scale, bias, epsilon, centered, dtype, with_input, interpret)[0]


def _forward(x, scale, bias, epsilon, centered, dtype, with_input, interpret):
  from t5like.kernels.gpu import norm as gpu_norm

  rows = x.reshape(-1, x.shape[-1])
  work = gpu_norm.NormWork(*rows.shape, epsilon, centered, interpret)
  y = gpu_norm.forward(rows, scale, bias, dtype, work).reshape(x.shape)
  return (y, x) if with_input else y, (x, scale, bias)


def _backward(epsilon, centered, dtype, with_input, interpret, kept, gradient):
  from t5like.kernels.gpu import norm as gpu_norm

  x, scale, bias = kept
  rows = x.reshape(-1, x.shape[-1])
  gradient, residual = gradient if with_input else (gradient, None)
  work = gpu_norm.NormWork(*rows.shape, epsilon, centered, interpret)
  flat = [g if g is None else g.reshape(rows.shape) for g in (gradient, residual)]
  d_x, d_scale, d_bias = gpu_norm.backward(rows, scale, *flat, bias is not None, work)
  return d_x.reshape(x.shape), d_scale, d_bias


_on_gpu.defvjp(_forward, _backward)
