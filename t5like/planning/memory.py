"""Memory of a device during a train step: the state exactly, activations from the traced model.

Memory other than the state changes during a step: activations accumulate in the forward pass, logits and their gradient
follow at the loss, and in the backward pass gradients of parameters replace activations, layer by layer. The peak is
the largest of these moments. With a loop over layers, or microbatches, the gradients of all parameters exist from the
start.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from t5like import parallel
from t5like.models.stack import choose_layer_loop
from t5like.planning.activations import count_activations
from t5like.training.optimizers.selection import Selection


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
  """Bytes on one device. Gradients, activations and temporaries do not all exist at the same time: see `peak`.

  parameters, optimizer  the state, always present
  gradients              of the parameters that train
  activations            saved from the forward to the backward pass
  temporaries            the largest other working set: logits, or a layer's gradients and recomputed activations; and
                         weights that are gathered or converted to the compute dtype
  peak                   maximum of everything except the state
  moment                 when that is
  """

  parameters: int
  optimizer: int
  gradients: int
  activations: int
  temporaries: int
  peak: int
  moment: str

  @property
  def total(self) -> int:
    return self.parameters + self.optimizer + self.peak


@dataclasses.dataclass(frozen=True)
class StateBytes:
  """Bytes of the train state on one device.

  weights, layer_weights  matrices in the compute dtype after `fsdp` has gathered them, split by tensor parallelism
                          only: of all layers, and of the largest layer
  variables               number of parameter arrays
  trained                 of the parameters, those that train; None: all
  """

  parameters: int
  optimizer: int
  weights: int
  layer_weights: int
  variables: int
  trained: int | None = None

  @property
  def gradients(self) -> int:
    return self.parameters if self.trained is None else self.trained


def device_bytes(shapes: Any, shardings: Any) -> int:
  """Returns the bytes of a sharded tree on one device."""
  return sum(
    math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf, sharding in zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True)
  )


def state_bytes(
  params: Any,
  param_shardings: Any,
  opt_state: Any,
  opt_shardings: Any,
  dtype: str,
  selection: Selection | None = None,
) -> StateBytes:
  """Returns the bytes of a state on one device; `dtype` is the compute dtype, `selection` what trains (None: all)."""
  trained = None
  if selection is not None:
    trained = device_bytes(jax.eval_shape(selection.take, params), selection.take_whole(param_shardings))
  return StateBytes(
    device_bytes(params, param_shardings),
    device_bytes(opt_state, opt_shardings),
    *_computed_weights(params, param_shardings, jnp.dtype(dtype).itemsize),
    len(jax.tree.leaves(params)),
    trained,
  )


def estimate_memory(
  model: nn.Module,
  batch: Mapping[str, Any],
  state: StateBytes,
  mesh: Mapping[str, int],
  microbatches: int = 1,
  by_position: bool = False,
  platform: str | None = None,
) -> MemoryEstimate:
  """Estimates the memory of a train step; `batch` is global (arrays or shapes), the rest as in `count_activations`."""
  config = model.config
  rows = next(iter(batch.values())).shape[0] / (parallel.row_shards(mesh) * microbatches)
  counted = count_activations(model, batch, mesh["tensor"], platform, by_position)
  saved = rows * counted.saved
  # Unrolled layers keep gathered or converted weights from the forward to the backward pass.
  loops = choose_layer_loop(config, platform)[0] == "loop"
  held = state.layer_weights if loops or config.remat != "none" else state.weights
  if config.compute_dtype == config.param_dtype and mesh["fsdp"] == 1:
    held = 0
  layer = rows * (counted.recomputed + counted.working)
  early = state.gradients if loops or microbatches > 1 else 0
  moments = {
    "at the loss": saved + held + rows * counted.logits + (early if microbatches > 1 else 0),
    "in the last layer's gradients": saved + held + layer + early,
    "in the first layer's gradients": state.gradients + held + layer,
  }
  moment = max(moments, key=moments.get)
  return MemoryEstimate(
    parameters=state.parameters,
    optimizer=state.optimizer,
    gradients=state.gradients,
    activations=round(saved),
    temporaries=round(held + max(rows * counted.logits, layer)),
    peak=round(moments[moment]),
    moment=moment,
  )


def _computed_weights(params: Any, shardings: Any, width: int) -> tuple[int, int]:
  """Returns the bytes of all matrices and of the largest layer; embeddings count as a layer."""
  total, layers = 0, {}
  for (path, leaf), sharding in zip(jax.tree.leaves_with_path(params), jax.tree.leaves(shardings), strict=True):
    if leaf.ndim < 2:
      continue
    names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
    size = math.prod(_without_fsdp(sharding).shard_shape(leaf.shape)) * width
    stacked = "layers" in names
    layer = "/".join(names[:2]) if len(names) > 1 and names[1].startswith("layers") else names[0]
    layers[layer] = layers.get(layer, 0) + size // (leaf.shape[0] if stacked else 1)
    total += size
  return total, max(layers.values(), default=0)


def _without_fsdp(sharding: NamedSharding) -> NamedSharding:
  """Returns the sharding without the mesh axis `fsdp`."""

  def rest(axes: Any) -> Any:
    return tuple(a for a in ((axes,) if isinstance(axes, str) else axes or ()) if a != "fsdp") or None

  return sharding.update(spec=jax.sharding.PartitionSpec(*(rest(axes) for axes in sharding.spec)))
