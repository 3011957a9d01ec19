"""A model and its weights as decoding wants them: layers unrolled, kernels in the compute dtype, some side by side.

A step reads every weight once to make one token a row: it is bound by memory, and by how many small products it
starts. So what can be done once is done before the loop. Results are the same but for the order of sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

# Products of the same input, by the names of their kernels, that become one.
_FUSED = {"qkv": ("query", "key", "value"), "wi": ("wi_0", "wi_1")}
# Stacks whose layers take steps; an encoder runs once, on many tokens.
_STEPPING = ("decoder", "shared")


def prepare(model: nn.Module, params: Mapping[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
  """The model to call and the variables to call it with, to be traced into the same function as the loop."""
  config = model.config
  params = _cast(nn.meta.unbox(params), config.dtype)
  if config.scan_layers:
    params = {name: _unrolled(tree) for name, tree in params.items()}
  if config.scan_layers or config.remat != "none":
    model = model.clone(config=dataclasses.replace(config, scan_layers=False, remat="none"))
  fused = {name: _fused(params[name]) for name in _STEPPING if name in params}
  return model, {"params": params, "fused": fused}


def fused_products(module: nn.Module, name: str, x: jax.Array) -> jax.Array:
  """x [..., in] times kernels laid together as [in, products, out]: [..., products, out]."""
  weights = module.get_variable("fused", name)
  y = jnp.einsum("...i,ipo->...po", x, weights["kernel"])
  if "bias" in weights:
    y = y + weights["bias"].reshape((1,) * (y.ndim - 2) + weights["bias"].shape)
  return y


def _cast(tree: Mapping[str, Any], dtype: jnp.dtype) -> dict[str, Any]:
  """Kernels, their biases and embeddings in the dtype that modules cast them to anyway; norms stay as they are."""
  cast = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      cast[name] = _cast(value, dtype)
    else:
      # Relative positions are no vectors: their table is added to scores in float32.
      table = name.endswith("embedding") and name != "rel_embedding"
      cast[name] = value.astype(dtype) if table or "kernel" in tree else value
  return cast


def _unrolled(tree: Mapping[str, Any]) -> dict[str, Any]:
  """{"layers": arrays with a leading axis} -> {"layers_0": ..., "layers_1": ...}."""
  if "layers" not in tree:
    return dict(tree)
  stacked = tree["layers"]
  count = jax.tree.leaves(stacked)[0].shape[0]
  layers = {f"layers_{i}": jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)}
  return layers | {name: value for name, value in tree.items() if name != "layers"}


def _fused(tree: Mapping[str, Any]) -> dict[str, Any]:
  """For each group of plain dense layers, their kernels as [in, products, out].

  Stacked, not end to end: the last axis keeps its sharding over devices.
  """
  found = {name: _fused(value) for name, value in tree.items() if isinstance(value, Mapping)}
  found = {name: value for name, value in found.items() if value}
  for name, parts in _FUSED.items():
    layers = [tree.get(part) for part in parts]
    if all(isinstance(layer, Mapping) and set(layer) <= {"kernel", "bias"} for layer in layers):
      found[name] = {leaf: jnp.stack([layer[leaf] for layer in layers], axis=-2) for leaf in layers[0]}
  return found
