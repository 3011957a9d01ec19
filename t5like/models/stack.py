"""A stack of blocks with what they share: the relative position bias and the final norm."""

import dataclasses

import flax.linen as nn
import jax

from t5like.kernels.keeping import ATTENTION_RESULTS
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
  platform = platform or target_platform()
  if platform == "gpu":
    return "unrolled", "on a GPU a loop copies what the backward pass keeps"
  return "loop", f"one layer compiled for all, as fast on a {platform.upper()}"


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
    block = Block
    # Parameters are made layer by layer in any case: there is nothing to gain from compiling that more than once.
    loops = self.config.scan_layers and (self.is_initializing() or choose_layer_loop(self.config)[0] == "loop")
    if self.config.remat != "none":
      # A loop itself keeps XLA from merging the recomputation with the first pass.
      block = nn.remat(Block, policy=REMAT_POLICIES[self.config.remat], prevent_cse=not loops)
    if self.config.scan_layers:
      return nn.scan(
        block,
        variable_axes={"params": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=self.num_layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
        unroll=not loops,
      )(self.config, self.has_cross_attention, name="layers")(x, cache, context)
    kept = []
    for i in range(self.num_layers):
      layer = block(self.config, self.has_cross_attention, name=f"layers_{i}")
      x, layer_cache = layer(x, cache and cache[i], context)
      kept.append(layer_cache)
    return x, None if kept[0] is None else tuple(kept)
