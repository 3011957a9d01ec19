"""RMS norm and layer norm over the last axis, computed in float32 for any input dtype."""

import functools

import jax
import jax.numpy as jnp

from t5like.kernels.platform import is_single_gpu


def norm(
  x: jax.Array, scale: jax.Array, bias: jax.Array | None, *, epsilon: float, centered: bool, dtype: jnp.dtype,
  with_input: bool = False, overwritten: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:  # fmt: skip
  """Normalizes x [..., width]: layer norm if `centered`, else RMS norm; returns `dtype`.

  with_input   also returns x for the residual connection: on a GPU one kernel then adds both gradients
  overwritten  a product will add to that x in place: for the backward pass, the kernel writes a copy of x while it has
               it, where XLA would read x once more
  """
  if _has_kernel(x):
    return _on_gpu(x, *_to_float32(scale, bias), epsilon, centered, dtype, with_input, overwritten, False)
  y = _plain(x, scale, bias, epsilon, centered, dtype)
  return (y, x) if with_input else y


def _has_kernel(x: jax.Array) -> bool:
  """Whether the fused kernel applies."""
  if not is_single_gpu():
    return False
  from t5like.kernels.gpu.norm import unsupported_reason

  return unsupported_reason(x) is None


def _to_float32(scale, bias):
  return scale.astype(jnp.float32), None if bias is None else bias.astype(jnp.float32)


def _plain(x, scale, bias, epsilon, centered, dtype):
  scale, bias = _to_float32(scale, bias)
  row = (1,) * (x.ndim - 1) + x.shape[-1:]
  y = x.astype(jnp.float32)
  if centered:
    y = y - jnp.mean(y, axis=-1, keepdims=True)
  y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + epsilon) * scale.reshape(row)
  y = y if bias is None else y + bias.reshape(row)
  return y.astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6, 7, 8))
def _on_gpu(x, scale, bias, epsilon, centered, dtype, with_input, overwritten, interpret):
  return _forward(x, scale, bias, epsilon, centered, dtype, with_input, False, interpret)[0]


def _forward(x, scale, bias, epsilon, centered, dtype, with_input, overwritten, interpret):
  from t5like.kernels.gpu import norm as gpu_norm

  rows = x.reshape(-1, x.shape[-1])
  spec = gpu_norm.NormSpec(*rows.shape, epsilon, centered, interpret)
  y, *copies = (z.reshape(x.shape) for z in gpu_norm.forward(rows, scale, bias, dtype, overwritten, spec))
  return (y, x) if with_input else y, (*(copies or [x]), scale, bias)


def _backward(epsilon, centered, dtype, with_input, overwritten, interpret, residuals, gradient):
  from t5like.kernels.gpu import norm as gpu_norm

  x, scale, bias = residuals
  rows = x.reshape(-1, x.shape[-1])
  gradient, residual = gradient if with_input else (gradient, None)
  spec = gpu_norm.NormSpec(*rows.shape, epsilon, centered, interpret)
  flat = [g if g is None else g.reshape(rows.shape) for g in (gradient, residual)]
  d_x, d_scale, d_bias = gpu_norm.backward(rows, scale, *flat, bias is not None, spec)
  return d_x.reshape(x.shape), d_scale, d_bias


_on_gpu.defvjp(_forward, _backward)
