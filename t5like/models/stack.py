"""A stack of blocks with what they share: the relative position bias and the final norm."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.attention.keeping import ATTENTION_RESULTS
from t5like.kernels.platform import target_platform
from t5like.models.attention import Context, RelativeBiasTable
from t5like.models.blocks import Block
from t5like.models.config import TransformerConfig
from t5like.models.layers import Norm

_policies = jax.checkpoint_policies
REMAT_POLICIES = {
  # Nothing that takes long is done twice: norms and activations are, which are read from memory as fast as computed.
  "elementwise": _policies.save_from_both_policies(
    _policies.dots_saveable, _policies.save_only_these_names(ATTENTION_RESULTS)
  ),
  # Matrix products with weights are kept, attention scores (which grow with length^2) are not.
  "dots": _policies.dots_with_no_batch_dims_saveable,
  "full": _policies.nothing_saveable,
}


def choose_layer_loop(config: TransformerConfig, platform: str | None = None) -> tuple[str, str]:
  """How layers run, "loop" or "unrolled", and why. Parameters are the same for both: a checkpoint moves freely."""
  if not config.scan_layers:
    return "unrolled", "each layer has arrays of its own; a loop needs SCAN_LAYERS = True"
  if config.layer_loop != "auto":
    return config.layer_loop, "asked for by name"
  if (platform or target_platform()) == "gpu":
    return "unrolled", "on a GPU a loop copies what the backward pass keeps"
  return "loop", "one layer is compiled for all"


def describe_layer_loop(config: TransformerConfig, platform: str | None = None) -> str:
  """The same for people, on a line of the run card."""
  how, why = choose_layer_loop(config, platform)
  return f"{how} ({why})"


class Stack(nn.Module):
  """`num_layers` blocks: as layers_0, layers_1, ..., or stacked as `layers` with a leading axis."""

  config: TransformerConfig
  num_layers: int
  has_cross_attention: bool = False

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context, cache: tuple | dict | None = None
  ) -> tuple[jax.Array, tuple | dict | None]:
    """x [batch, length, embed] -> hidden states, and the cache to keep (None when training)."""
    config = self.config
    if config.positions == "relative_bias" and config.share_relative_bias:
      context = dataclasses.replace(context, bias=RelativeBiasTable(config, name="relpos_bias")(context.bidirectional))
    x, kept = self._layers(x, context, cache)
    if config.norm_position == "pre":
      x = Norm(config, name="final_norm")(x)
    if config.final_dropout:
      x = nn.Dropout(config.dropout_rate)(x, deterministic=context.deterministic)
    return x, kept

  def _layers(self, x: jax.Array, context: Context, cache: tuple | dict | None):
    remat = self.config.remat
    if self.config.scan_layers:
      # Parameters are made layer by layer in any case: nothing is gained from compiling that more than once.
      if self.is_initializing() or choose_layer_loop(self.config)[0] == "loop":
        # The loop itself keeps XLA from merging the recomputation with the first pass.
        block = Block if remat == "none" else nn.remat(Block, policy=REMAT_POLICIES[remat], prevent_cse=False)
        return _scanned(block, self.num_layers)(self.config, self.has_cross_attention, name="layers")(x, cache, context)
      if remat == "none":
        block = _scanned(Block, self.num_layers, unroll=True)
        return block(self.config, self.has_cross_attention, name="layers")(x, cache, context)
      return self._unrolled_and_recomputed(x, context, cache)
    block = Block if remat == "none" else nn.remat(Block, policy=REMAT_POLICIES[remat])
    kept = []
    for i in range(self.num_layers):
      layer = block(self.config, self.has_cross_attention, name=f"layers_{i}")
      x, layer_cache = layer(x, cache and cache[i], context)
      kept.append(layer_cache)
    return x, None if kept[0] is None else tuple(kept)

  def _unrolled_and_recomputed(self, x: jax.Array, context: Context, cache: dict | None):
    """Stacked layers one after the other, whose gradients begin with a second forward pass.

    What the second pass reads goes through a barrier, or XLA would merge it with the first; and what goes through a
    barrier lies in memory. Slices of the parameters would be a copy of them all, made at the start and kept to the
    end. So the stacked arrays go through, which lie there anyway, and a layer takes its slices behind the barrier.
    """
    stacked = jax.lax.stop_gradient(nn.unbox(self.variables["params"]["layers"]))

    def layer(block: Block, x, cache, number, stacked, context):
      def read(own):
        take = functools.partial(jax.lax.dynamic_index_in_dim, index=number, keepdims=False)
        return jax.tree.map(lambda mine, every: _in_place_of(mine, take(every)), nn.unbox(own), {"params": stacked})

      return nn.map_variables(lambda block: block(x, cache, context), "params", trans_in_fn=read)(block)

    # Of a layer's own variables (gradients alone go to them), its random keys, and its arguments in turn.
    barrier = (False, True, True, True, False, True, True)
    layer = nn.remat(layer, policy=REMAT_POLICIES[self.config.remat], prevent_cse=barrier)
    scanned = _scanned(layer, self.num_layers, in_axes=(0, 0, nn.broadcast, nn.broadcast), unroll=True)
    block = Block(self.config, self.has_cross_attention, name="layers")
    return scanned(block, x, cache, jnp.arange(self.num_layers), stacked, context)


def _scanned(layer: Callable, num_layers: int, in_axes: tuple = (0, nn.broadcast), unroll: bool = False) -> Callable:
  """Over parameters with a leading axis of their own, which sharding knows as `layers`."""
  return nn.scan(
    layer,
    variable_axes={"params": 0, "intermediates": 0},
    split_rngs={"params": True, "dropout": True},
    in_axes=in_axes,
    length=num_layers,
    metadata_params={nn.PARTITION_NAME: "layers"},
    unroll=unroll,
  )


@jax.custom_jvp
def _in_place_of(own: jax.Array, value: jax.Array) -> jax.Array:
  """`value`, the same numbers as `own` from elsewhere; gradients go to `own`."""
  return value


@_in_place_of.defjvp
def _tangent_of_own(primals, tangents):
  return primals[1], tangents[0]
