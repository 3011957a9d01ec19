"""The smallest parts: dense layers, norms, activations, and how each is initialized."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.norms import norm
from t5like.kernels.platform import target_platform
from t5like.models.config import TransformerConfig


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
  """max(x, 0), whose backward pass looks at its result: the product that follows keeps that anyway, x need not be."""
  return jnp.maximum(x, 0)


relu.defvjp(lambda x: (relu(x),) * 2, lambda y, gradient: (jnp.where(y > 0, gradient, 0),))

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "relu": relu,
  "gelu": lambda x: jax.nn.gelu(x, approximate=True),
  "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
  "silu": jax.nn.silu,
}


def activated(config: TransformerConfig, x: jax.Array, linear: jax.Array | None = None) -> jax.Array:
  """act(x), or act(x) * linear.

  The backward pass has x and computes the rest again. XLA would keep the tanh of a gelu, which it counts among the
  expensive functions: as many bytes as x, written and read back in more time than it takes to compute.
  """
  act = ACTIVATIONS[config.activation]
  if linear is not None:
    if target_platform() == "gpu":
      # Else the product before it computes the activation too, and writes x beside it: slower than both apart.
      x = jax.lax.optimization_barrier(x)
    return jax.checkpoint(lambda x, linear: act(x) * linear)(x, linear)
  return act(x) if act is relu else jax.checkpoint(act)(x)


def kernel_init(config: TransformerConfig, role: str = "plain") -> nn.initializers.Initializer:
  """`role` is "plain", "query" or "residual" (the last product of a residual branch)."""
  if config.initializer == "fan_in":
    # T5 has no 1/sqrt(head_dim) in attention: its query kernel starts that much smaller.
    folded = role == "query" and not config.scale_attention
    return nn.initializers.variance_scaling(1.0 / config.head_dim if folded else 1.0, "fan_in", "normal")
  stddev = config.initializer_stddev
  if role == "residual" and config.scale_residual_init:
    # Radford et al. 2019, section 2.3: N residual branches add up to unit variance.
    stddev *= (2 * (config.num_encoder_layers + config.num_decoder_layers)) ** -0.5
  return nn.initializers.normal(stddev)


def embedding_init(config: TransformerConfig) -> nn.initializers.Initializer:
  return nn.initializers.normal(1.0 if config.initializer == "fan_in" else config.initializer_stddev)


def dense(
  config: TransformerConfig, features: int, axes: tuple[str | None, str | None], role: str = "plain",
  use_bias: bool | None = None, name: str | None = None,
) -> nn.Dense:  # fmt: skip
  """A product with kernel [in, features] on logical `axes`."""
  return nn.Dense(
    features,
    use_bias=config.use_bias if use_bias is None else use_bias,
    dtype=config.dtype,
    param_dtype=jnp.dtype(config.param_dtype),
    kernel_init=nn.with_logical_partitioning(kernel_init(config, role), axes),
    bias_init=nn.with_logical_partitioning(nn.initializers.zeros, axes[1:]),
    name=name,
  )


class Norm(nn.Module):
  """RMS norm (no mean, no bias) or layer norm over the last axis, in float32."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: jax.Array, with_input: bool = False) -> jax.Array | tuple[jax.Array, jax.Array]:
    """x [..., embed], normalized; `with_input`, x itself too, for the residual connection around what comes next."""
    config, width = self.config, x.shape[-1]
    dtype = jnp.dtype(config.param_dtype)
    scale = self.param("scale", nn.with_logical_partitioning(nn.initializers.ones, ("embed",)), (width,), dtype)
    bias = None
    if config.norm == "layer":
      bias = self.param("bias", nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)), (width,), dtype)
    settings = dict(epsilon=config.norm_epsilon, centered=config.norm == "layer", dtype=jnp.dtype(config.dtype))
    return norm(x, scale, bias, **settings, with_input=with_input)


def on_activations(x: jax.Array) -> jax.Array:
  """Marks [batch, length, embed] for the partitioner; nothing without a mesh."""
  return nn.with_logical_constraint(x, ("batch", "length", "embed"))
