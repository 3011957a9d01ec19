"""A stack of blocks with what they share: the relative position bias and the final norm."""

import dataclasses

import flax.linen as nn
import jax

from t5like.kernels.keeping import ATTENTION_RESULTS
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


class Stack(nn.Module):
  """`num_layers` blocks, unrolled as layers_0, layers_1, ... or scanned as `layers` with a leading axis."""

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
    if self.config.remat != "none":
      # Inside a scan the loop itself keeps XLA from merging the recomputation with the first pass.
      policy = REMAT_POLICIES[self.config.remat]
      block = nn.remat(Block, policy=policy, prevent_cse=not self.config.scan_layers)
    if self.config.scan_layers:
      return nn.scan(
        block,
        variable_axes={"params": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=self.num_layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
      )(self.config, self.has_cross_attention, name="layers")(x, cache, context)
    kept = []
    for i in range(self.num_layers):
      layer = block(self.config, self.has_cross_attention, name=f"layers_{i}")
      x, layer_cache = layer(x, cache and cache[i], context)
      kept.append(layer_cache)
    return x, None if kept[0] is None else tuple(kept)
