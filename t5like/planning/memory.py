"""Bytes a device holds during a train step: the state exactly, the activations by a rule of thumb."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from t5like.models.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
  """Bytes on one device."""

  parameters: int
  optimizer: int
  gradients: int
  activations: int

  @property
  def total(self) -> int:
    return self.parameters + self.optimizer + self.gradients + self.activations


def device_bytes(shapes: Any, shardings: Any) -> int:
  """Bytes of a sharded tree on one device."""
  return sum(
    math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf, sharding in zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True)
  )


def activation_bytes(config: TransformerConfig, rows: int, encoder_length: int = 0, decoder_length: int = 0) -> int:
  """What the backward pass needs from the forward pass of `rows` rows, for plain attention.

  Kept per token and layer: the inputs of every product (norm outputs, queries, keys, values, mixed
  values, both sides of the MLP's activation) and the residual; per layer the attention weights in
  float32, before and after softmax. "dots" and "full" remat keep the products or the residual only.
  """
  width = jnp.dtype(config.compute_dtype).itemsize
  d, a, f = config.embed_dim, config.num_heads * config.head_dim, config.mlp_dim
  hidden = (3 if config.gated_mlp else 2) * f
  kept_per_token = {"none": 4 * d + 4 * a + hidden, "dots": d + 4 * a + hidden, "full": d}[config.remat] * width

  def stack(length: int, keys: int, layers: int) -> int:
    weights = 0 if config.remat == "full" else 8 * rows * config.num_heads * length * keys
    return layers * (rows * length * kept_per_token + weights)

  total = stack(encoder_length, encoder_length, config.num_encoder_layers)
  total += stack(decoder_length, decoder_length + encoder_length, config.num_decoder_layers)
  predicted = decoder_length or encoder_length
  return total + 2 * rows * predicted * config.vocab_size * jnp.dtype(config.logits_dtype).itemsize


def estimate_memory(
  config: TransformerConfig,
  params: Any,
  param_shardings: Any,
  opt_state: Any,
  opt_shardings: Any,
  rows_per_device: int,
  encoder_length: int = 0,
  decoder_length: int = 0,
) -> MemoryEstimate:
  parameters = device_bytes(params, param_shardings)
  return MemoryEstimate(
    parameters=parameters,
    optimizer=device_bytes(opt_state, opt_shardings),
    gradients=parameters,
    activations=activation_bytes(config, rows_per_device, encoder_length, decoder_length),
  )
