"""Dense layers, norms and dropout, and their initialization."""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.activations import add_bias
from t5like.kernels.attention import dividing_axes
from t5like.kernels.dropout import DrawnDropout
from t5like.kernels.norms import norm
from t5like.kernels.platform import target_platform
from t5like.kernels.products import residual_product
from t5like.models.config import TransformerConfig
from t5like.models.tuning import extended, extensions


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
  def __call__(self, x: jax.Array, residual: jax.Array | None = None) -> jax.Array:
    """Returns the product of x [..., in], plus `residual` [..., features] in a decoding step."""
    if residual is None:
      return extended(self, self._product, x)
    if extensions(self):
      return residual + extended(self, self._product, x)
    kernel, bias = self._parameters(x.shape[-1])
    return residual_product(residual, x.astype(self.dtype), kernel.astype(self.dtype), bias)

  def _product(self, x: jax.Array) -> jax.Array:
    kernel, bias = self._parameters(x.shape[-1])
    y = x.astype(self.dtype) @ kernel.astype(self.dtype)
    return y if bias is None else add_bias(y, bias)

  def _parameters(self, depth: int) -> tuple[jax.Array, jax.Array | None]:
    kernel = parameter(self, "kernel", self.kernel_init, (depth, self.features), self.param_dtype)
    bias = None
    if self.use_bias:
      bias = parameter(self, "bias", self.bias_init, (self.features,), self.param_dtype)
    return kernel, bias


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


def joins_products(layers: Sequence[Dense], axis: str) -> bool:
  """Whether `joined_product` of dense layers with the same input takes less time than their products: on GPUs.

  Queries, keys and values of 32,768 tokens and 1,024 features take 18% less on an H200: columns fill more tiles, and
  the gradients of the input are not written one by one and summed. A mesh that shards `axis`, the layers' features,
  would have to move them. Layers that fine-tuning extends have products of their own.
  """
  plain = all(layer.has_variable("params", "kernel") and not extensions(layer) for layer in layers)
  alike = len({(layer.features, layer.use_bias) for layer in layers}) == 1
  if target_platform() != "gpu" or not alike or not plain or layers[0].is_initializing():
    return False
  (shards,) = nn.logical_to_mesh_axes((axis,)) or (None,)
  return dividing_axes(jax.sharding.get_abstract_mesh(), shards, layers[0].features) is None


def joined_product(layers: Sequence[Dense], x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
  """Returns x [..., in] times the kernels of dense layers, [..., layers * features], and their biases, if any."""

  def joined(name: str) -> jax.Array:
    return jnp.concatenate([nn.unbox(layer.get_variable("params", name)) for layer in layers], axis=-1)

  dtype = layers[0].dtype
  y = x.astype(dtype) @ joined("kernel").astype(dtype)
  return y, joined("bias") if layers[0].use_bias else None


class Norm(nn.Module):
  """RMS norm (no mean, no bias), layer norm or none over the last axis, in float32; `axis` is its logical name."""

  config: TransformerConfig
  axis: str = "embed"

  @nn.compact
  def __call__(
    self, x: jax.Array, with_input: bool = False, overwritten: bool = False
  ) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Normalizes x [..., embed]; `with_input` also returns x, for the residual connection; see kernels/norms.py."""
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
    return norm(x, scale, bias, **settings, with_input=with_input, overwritten=overwritten)


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
  """Dropout that recomputes its mask in the backward pass, instead of storing it."""

  rate: float

  @nn.compact
  def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
    drawn = self.draw(x.shape, deterministic)
    return x if drawn is None else drawn(x)

  def draw(self, shape: tuple[int, ...], deterministic: bool) -> DrawnDropout | None:
    if not self.rate or deterministic:
      return None
    return DrawnDropout.draw(shape, self.rate, self.make_rng("dropout"))


def input_kernels(config: TransformerConfig) -> tuple[str, ...]:
  """Returns the names of the kernels that an MLP multiplies its input by."""
  return ("wi_0", "wi_1") if config.gated_mlp else ("wi",)


def draw_mlp_dropout(config: TransformerConfig, shape: tuple[int, ...], deterministic: bool) -> DrawnDropout | None:
  """Draws the dropout of the hidden layer [*shape, mlp] of an MLP. Call it within a compact module."""
  return Dropout(config.mlp_dropout).draw((*shape, config.mlp_dim), deterministic)


def constrain_activations(x: jax.Array) -> jax.Array:
  """Constrains the sharding of activations [batch, length, embed]; a no-op without a mesh."""
  return nn.with_logical_constraint(x, ("batch", "length", "embed"))
