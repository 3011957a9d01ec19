"""Biases, activations and gates: what an MLP computes between its products, with a backward pass of one kernel."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from t5like.kernels.activation_functions import Activation, relu
from t5like.kernels.dropout import DrawnDropout
from t5like.kernels.platform import is_single_gpu, target_platform


@jax.custom_vjp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
  """Computes x + bias in the dtype of x. The gradient of the bias is summed in float32.

  XLA would sum rows of bfloat16 in bfloat16: on a GPU, gradients of thousands of rows were up to 26% off.
  """
  return x + bias.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


add_bias.defvjp(
  lambda x, bias: (add_bias(x, bias), bias),
  lambda bias, gradient: (gradient, _column_sums(gradient).astype(bias.dtype)),
)


def activate(act: Activation, projected: Sequence[jax.Array], dropout: DrawnDropout | None) -> jax.Array:
  """Computes dropout(act(x)) of one array, or the gate dropout(act(x) * linear) of two.

  The backward pass recomputes the activation from x. XLA would save the tanh of a gelu, which it considers expensive;
  that takes as much memory as x, and more time to write and read than to recompute. The dropout is inside: its backward
  pass would otherwise be a kernel of its own.
  """
  x, *linear = projected
  if linear:
    return jax.checkpoint(lambda x, linear: _drop(act(x) * linear, dropout))(_unfused(x), *linear)
  if act is relu:
    return _drop(act(x), dropout)
  return jax.checkpoint(lambda x: _drop(act(x), dropout))(x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def activate_joined(
  act: Activation, gated: bool, x: jax.Array, bias: jax.Array | None, dropout: DrawnDropout | None
) -> jax.Array:
  """Computes dropout(act(x + bias)); if `gated`, with x [..., 2 * mlp], dropout(act(x[..., :mlp]) * x[..., mlp:]).

  On a GPU the backward pass is one kernel, which also sums the gradient of the bias.
  """
  return _joined_forward(act, gated, x, bias, dropout)[0]


def _joined_forward(act, gated, x, bias, dropout):
  x = x if bias is None else add_bias(x, bias)
  x = _unfused(x) if gated else x
  return _hidden(act, gated, x, dropout), (x, bias, dropout)


def _joined_backward(act, gated, residuals, gradient):
  x, bias, dropout = residuals
  if _has_kernel(x):
    from t5like.kernels.gpu.activation import activation_gradient

    rows = [y.reshape(-1, y.shape[-1]) for y in (x, gradient)]
    d_x, sums = activation_gradient(act, *rows, gated, bias is not None and not gated, dropout)
    d_x = d_x.reshape(x.shape)
  else:
    (d_x,) = jax.vjp(lambda x: _hidden(act, gated, x, dropout), x)[1](gradient)
    sums = None
  if bias is None:
    return d_x, None, None
  return d_x, (_column_sums(d_x) if sums is None else sums).astype(bias.dtype), None


activate_joined.defvjp(_joined_forward, _joined_backward)


def _hidden(act: Activation, gated: bool, x: jax.Array, dropout: DrawnDropout | None) -> jax.Array:
  half = x.shape[-1] // 2
  return _drop(act(x[..., :half]) * x[..., half:] if gated else act(x), dropout)


def _drop(h: jax.Array, dropout: DrawnDropout | None) -> jax.Array:
  return h if dropout is None else dropout(h)


def _unfused(x: jax.Array) -> jax.Array:
  """Keeps XLA from fusing an activation into the product before it, which is slower than separate kernels on GPUs."""
  return jax.lax.optimization_barrier(x) if target_platform() == "gpu" else x


def _column_sums(x: jax.Array) -> jax.Array:
  """Returns the sums over all axes of x but the last, in float32."""
  if _has_kernel(x):
    from t5like.kernels.gpu.activation import column_sums

    return column_sums(x.reshape(-1, x.shape[-1]))
  return jnp.sum(x, axis=tuple(range(x.ndim - 1)), dtype=jnp.float32)


def _has_kernel(x: jax.Array) -> bool:
  """Whether the kernels apply: XLA fuses small arrays with the operations around them; indices have 32 bits."""
  return is_single_gpu() and 2**20 <= x.size < 2**31
