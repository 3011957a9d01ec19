"""Dense layers, norms and activations, and their initialization."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.dropout import drawn_dropout
from t5like.kernels.norms import norm
from t5like.kernels.platform import target_platform
from t5like.models.config import TransformerConfig
from t5like.models.tuning import extended


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
  """Computes max(x, 0). Its backward pass reads the result, which the next product keeps anyway, instead of x."""
  return jnp.maximum(x, 0)


relu.defvjp(lambda x: (relu(x),) * 2, lambda y, gradient: (jnp.where(y > 0, gradient, 0),))

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
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


def activate(
  config: TransformerConfig,
  x: jax.Array,
  linear: jax.Array | None = None,
  drop: Callable[[jax.Array], jax.Array] = lambda h: h,
) -> jax.Array:
  """Computes drop(act(x)), or drop(act(x) * linear).

  The backward pass recomputes the activation from x. XLA would save the tanh of a gelu, which it considers expensive;
  that takes as much memory as x, and more time to write and read than to recompute. The dropout is inside: its backward
  pass would otherwise be a kernel of its own.
  """
  act = ACTIVATIONS[config.activation]
  if linear is not None:
    if target_platform() == "gpu":
      # Keeps XLA from fusing the activation into the product before it, which is slower than separate kernels.
      x = jax.lax.optimization_barrier(x)
    return jax.checkpoint(lambda x, linear: drop(act(x) * linear))(x, linear)
  return drop(act(x)) if act is relu else jax.checkpoint(lambda x: drop(act(x)))(x)


def kernel_init(config: TransformerConfig, role: str = "plain") -> nn.initializers.Initializer:
  """Returns the initializer of a kernel.

  role  "plain"; in residual branches "query", "branch" and "residual", the last product
  """
  if config.residual == "fixup" and role != "plain":
    return _fixup_init(config, role)
  if config.initializer == "fan_in":
    # T5 does not scale attention by 1/sqrt(head_dim); its query kernel is initialized smaller instead.
    folded = role == "query" and not config.scale_attention
    return nn.initializers.variance_scaling(1.0 / config.head_dim if folded else 1.0, "fan_in", "normal")
  stddev = config.initializer_stddev
  if role == "residual" and config.scale_residual_init:
    # Radford et al. 2019, section 2.3: the sum of N residual branches has unit variance.
    stddev *= (2 * (config.num_encoder_layers + config.num_decoder_layers)) ** -0.5
  return nn.initializers.normal(stddev)


def _fixup_init(config: TransformerConfig, role: str) -> nn.initializers.Initializer:
  """Zhang et al. 2019, section 3: branches start at 0, their other kernels smaller by L^(-1/(2m - 2)).

  L is the number of branches of the model, m = 2 the number of kernels between the input and output of a branch.
  """
  if role == "residual":
    return nn.initializers.zeros
  factor = (2 * config.num_encoder_layers + 3 * config.num_decoder_layers) ** -0.5
  usual = kernel_init(dataclasses.replace(config, residual="plain"), role)
  return lambda *args, **kwargs: factor * usual(*args, **kwargs)


def embedding_init(config: TransformerConfig) -> nn.initializers.Initializer:
  return nn.initializers.normal(1.0 if config.initializer == "fan_in" else config.initializer_stddev)


@jax.custom_vjp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
  """Computes x + bias in the dtype of x. The gradient of the bias is summed in float32.

  XLA would sum rows of bfloat16 in bfloat16: on a GPU, gradients of thousands of rows were up to 26% off.
  """
  return x + bias.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


def _bias_gradients(bias: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
  summed = jnp.sum(gradient, axis=tuple(range(gradient.ndim - 1)), dtype=jnp.float32)
  return gradient, summed.astype(bias.dtype)


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), bias), _bias_gradients)


def parameter(
  module: nn.Module, name: str, init: nn.initializers.Initializer, shape: tuple[int, ...], dtype: jnp.dtype
) -> jax.Array:
  """Returns `module.param(...)`, but does not trace the initializer of a parameter that is given.

  Flax does, to compare the shapes: that took a third of the time to trace a model.
  """
  if module.has_variable("params", name) and not module.is_mutable_collection("params"):
    value = nn.unbox(module.get_variable("params", name))
    if value.shape == shape:
      return value
  return module.param(name, init, shape, dtype)


class Dense(nn.Dense):
  """A dense layer that finetuning may extend: see tuning.py."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    return extended(self, self._product, x)

  def _product(self, x: jax.Array) -> jax.Array:
    kernel = parameter(self, "kernel", self.kernel_init, (x.shape[-1], self.features), self.param_dtype)
    y = x.astype(self.dtype) @ kernel.astype(self.dtype)
    if not self.use_bias:
      return y
    return add_bias(y, parameter(self, "bias", self.bias_init, (self.features,), self.param_dtype))


def dense(
  config: TransformerConfig, features: int, axes: tuple[str | None, str | None], role: str = "plain",
  use_bias: bool | None = None, name: str | None = None,
) -> Dense:  # fmt: skip
  """Builds a dense layer whose kernel [in, features] has logical `axes`."""
  return Dense(
    features,
    use_bias=config.use_bias if use_bias is None else use_bias,
    dtype=config.dtype,
    param_dtype=jnp.dtype(config.param_dtype),
    kernel_init=nn.with_logical_partitioning(kernel_init(config, role), axes),
    bias_init=nn.with_logical_partitioning(nn.initializers.zeros, axes[1:]),
    name=name,
  )


class Norm(nn.Module):
  """RMS norm (no mean, no bias), layer norm or none over the last axis, in float32; `axis` is its logical name."""

  config: TransformerConfig
  axis: str = "embed"

  @nn.compact
  def __call__(self, x: jax.Array, with_input: bool = False) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Normalizes x [..., embed]; `with_input` also returns x, for the residual connection."""
    config, width = self.config, x.shape[-1]
    if config.norm == "none":
      x = x.astype(config.dtype)
      return (x, x) if with_input else x
    dtype = jnp.dtype(config.param_dtype)
    ones = nn.with_logical_partitioning(nn.initializers.ones, (self.axis,))
    scale = parameter(self, "scale", ones, (width,), dtype)
    bias = None
    if config.norm == "layer":
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, (self.axis,))
      bias = parameter(self, "bias", zeros, (width,), dtype)
    settings = dict(epsilon=config.norm_epsilon, centered=config.norm == "layer", dtype=jnp.dtype(config.dtype))
    return norm(x, scale, bias, **settings, with_input=with_input)


class ResidualScale(nn.Module):
  """The learned numbers of a residual branch with `residual` "rezero" or "fixup"."""

  config: TransformerConfig

  def setup(self):
    is_fixup, dtype = self.config.residual == "fixup", jnp.dtype(self.config.param_dtype)
    start = nn.initializers.ones if is_fixup else nn.initializers.zeros
    self.scale = self.param("scale", nn.with_logical_partitioning(start, (None,)), (1,), dtype)
    if is_fixup:
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, (None,))
      self.shift = self.param("shift", zeros, (1,), dtype)

  def read(self, h: jax.Array) -> jax.Array:
    """Returns the input of the branch, given that of the sublayer [batch, length, embed]."""
    return h + self.shift.astype(h.dtype)[:, None, None] if self.config.residual == "fixup" else h

  def __call__(self, y: jax.Array) -> jax.Array:
    """Returns what the branch adds, given the sublayer's result [batch, length, embed]."""
    return y * self.scale.astype(y.dtype)[:, None, None]


class Dropout(nn.Module):
  """Dropout that draws its mask anew in the backward pass, instead of storing it."""

  rate: float

  @nn.compact
  def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
    return self.drawn(x.shape, deterministic)(x)

  def drawn(self, shape: tuple[int, ...], deterministic: bool) -> Callable[[jax.Array], jax.Array]:
    """Returns the dropout of arrays of a shape, for a function that the backward pass computes again."""
    if not self.rate or deterministic:
      return lambda x: x
    return drawn_dropout(shape, self.rate, self.make_rng("dropout"))


def hidden_layer(
  config: TransformerConfig, project_in: Callable[[str], jax.Array], shape: tuple[int, ...], deterministic: bool
) -> jax.Array:
  """Returns the hidden layer [*shape, mlp] of an MLP, with dropout. Call it within a compact module.

  project_in  multiplies the input by the kernel of a name: wi, or wi_0 and wi_1 of a gated MLP
  """
  rate = config.dropout_rate if config.mlp_dropout_rate is None else config.mlp_dropout_rate
  drop = Dropout(rate).drawn((*shape, config.mlp_dim), deterministic)
  return activate(config, *map(project_in, ("wi_0", "wi_1") if config.gated_mlp else ("wi",)), drop=drop)


def constrain_activations(x: jax.Array) -> jax.Array:
  """Constrains the sharding of activations [batch, length, embed]; a no-op without a mesh."""
  return nn.with_logical_constraint(x, ("batch", "length", "embed"))
