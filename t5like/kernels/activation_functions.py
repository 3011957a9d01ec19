"""Activation functions by the names of configurations."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Activation = Callable[[jax.Array], jax.Array]


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
  """Computes max(x, 0). Its backward pass reads the result, which the next product keeps anyway, instead of x."""
  return jnp.maximum(x, 0)


relu.defvjp(lambda x: (jnp.maximum(x, 0),) * 2, lambda y, gradient: (jnp.where(y > 0, gradient, 0),))

ACTIVATIONS: dict[str, Activation] = {
  "relu": relu,
  "gelu": lambda x: jax.nn.gelu(x, approximate=True),
  "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
  "silu": jax.nn.silu,
  "elu": jax.nn.elu,
  "selu": jax.nn.selu,
  "softplus": jax.nn.softplus,
  "sigmoid": jax.nn.sigmoid,
  "linear": lambda x: x,
}
