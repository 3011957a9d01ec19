"""Prepares a model and its weights for decoding: unrolls layers, casts kernels to the compute dtype, fuses some.

A decoding step reads every weight to generate one token per row: it is bound by memory bandwidth and by the number of
small kernels it launches. This work is done once, before the loop. Results only differ by the order of sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.models.tuning import merge

# Dense layers with the same input that are fused into one product.
_FUSED = {"qkv": ("query", "key", "value"), "kv": ("key", "value"), "wi": ("wi_0", "wi_1")}
# Stacks that run decoding steps; an encoder runs once, on many tokens.
_DECODER_STACKS = ("decoder", "shared")


def prepare(model: nn.Module, params: Mapping[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
  """Returns the model and variables to decode with. Call it in the jitted function that contains the loop."""
  config = model.config
  tuning, params = merge(model.tuning, nn.meta.unbox(params))
  if tuning != model.tuning:
    model = model.clone(tuning=tuning)
  params = cast_weights(params, config.dtype)
  if config.scan_layers:
    params = {name: _unroll(tree) for name, tree in params.items()}
  if config.scan_layers or config.remat != "none":
    model = model.clone(config=dataclasses.replace(config, scan_layers=False, remat="none"))
  fused = {name: _fuse(params[name]) for name in _DECODER_STACKS if name in params}
  return model, {"params": params, "fused": fused}


def fused_products(module: nn.Module, name: str, x: jax.Array) -> jax.Array:
  """Multiplies x [..., in] by fused kernels [in, products, out]: [..., products, out]."""
  weights = module.get_variable("fused", name)
  y = jnp.einsum("...i,ipo->...po", x, weights["kernel"])
  if "bias" in weights:
    y = y + weights["bias"].reshape((1,) * (y.ndim - 2) + weights["bias"].shape)
  return y


def cast_weights(tree: Mapping[str, Any], dtype: jnp.dtype) -> dict[str, Any]:
  """Casts kernels, their biases and embeddings to the dtype in which modules use them; norms are not cast."""
  cast = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      cast[name] = cast_weights(value, dtype)
    else:
      # The relative position bias is added to scores in float32.
      table = name.endswith("embedding") and name != "rel_embedding"
      cast[name] = value.astype(dtype) if table or (name in ("kernel", "bias") and "kernel" in tree) else value
  return cast


def _unroll(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Splits {"layers": arrays with a leading axis} into {"layers_0": ..., "layers_1": ...}."""
  if "layers" not in tree:
    return dict(tree)
  stacked = tree["layers"]
  count = jax.tree.leaves(stacked)[0].shape[0]
  layers = {f"layers_{i}": jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)}
  return layers | {name: value for name, value in tree.items() if name != "layers"}


def _fuse(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Stacks the kernels of each group of dense layers as [in, products, out].

  Stacked rather than concatenated, so that the last axis keeps its sharding. Keys and values of fewer heads than
  queries are stacked without them.
  """
  found = {name: _fuse(value) for name, value in tree.items() if isinstance(value, Mapping)}
  found = {name: value for name, value in found.items() if value}
  for name, parts in _FUSED.items():
    layers = [tree.get(part) for part in parts]
    if name == "kv" and "qkv" in found:
      continue
    if all(isinstance(layer, Mapping) and set(layer) <= {"kernel", "bias"} for layer in layers) and _equal(layers):
      found[name] = {leaf: jnp.stack([layer[leaf] for layer in layers], axis=-2) for leaf in layers[0]}
  return found


def _equal(layers: list[Mapping[str, Any]]) -> bool:
  return all({k: x.shape for k, x in layer.items()} == {k: x.shape for k, x in layers[0].items()} for layer in layers)
