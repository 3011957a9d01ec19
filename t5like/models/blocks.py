"""One Transformer layer: self-attention, cross-attention in an encoder-decoder, MLP."""

import dataclasses

import flax.linen as nn
import jax

from t5like.kernels.activation_functions import ACTIVATIONS, relu
from t5like.kernels.activations import activate, activate_joined
from t5like.kernels.attention import Mask
from t5like.kernels.platform import is_single_gpu
from t5like.models.attention import Attention, Context, RelativeBiasTable
from t5like.models.config import TransformerConfig
from t5like.models.layers import (
  Dropout,
  Norm,
  ResidualScale,
  constrain_activations,
  dense,
  draw_mlp_dropout,
  input_kernels,
  joined_product,
  joins_products,
)
from t5like.models.modifications.experts import Experts
from t5like.models.modifications.relative_attention import RelativeAttention
from t5like.models.modifications.synthesizer import SynthesizerAttention
from t5like.models.stepping import fused_products
from t5like.models.tuning import extensions


class MLP(nn.Module):
  """act(x wi) wo, or gated: (act(x wi_0) * x wi_1) wo."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
    config, act = self.config, ACTIVATIONS[self.config.activation]
    if self.has_variable("fused", "wi"):  # in decoding
      gate_and_linear = fused_products(self, "wi", x)
      h = act(gate_and_linear[..., 0, :]) * gate_and_linear[..., 1, :]
    else:
      axes, names = ("embed", "mlp"), input_kernels(config)
      layers = [dense(config, config.mlp_dim, axes, role="branch", name=name) for name in names]
      dropout = draw_mlp_dropout(config, x.shape[:-1], deterministic)
      # For the kernel of the backward pass, which also sums the bias; relu's is cheaper still.
      has_kernel = is_single_gpu() and (config.gated_mlp or (config.use_bias and act is not relu))
      if has_kernel and joins_products(layers, "mlp"):
        h = activate_joined(act, config.gated_mlp, *joined_product(layers, x), dropout)
      else:
        h = activate(act, [layer(x) for layer in layers], dropout)
    h = nn.with_logical_constraint(h, ("batch", "length", "mlp"))
    return dense(config, config.embed_dim, ("mlp", "embed"), role="residual", name="wo")(h)


class Block(nn.Module):
  """Applies x + f(norm(x)) for each sublayer f, norm(x + f(x)) with post-norm, or x + norm(f(x)).

  `cache` holds this layer's keys and values while decoding, or XLNet's memory; the second result
  is the updated cache, None in training.
  """

  config: TransformerConfig
  has_cross_attention: bool = False

  def setup(self):
    config = self.config
    kind = RelativeAttention if config.positions == "transformer_xl" else Attention
    kind = kind if config.synthesizer == "none" else SynthesizerAttention
    self.attention, self.attention_norm = kind(config), Norm(config)
    if config.positions == "relative_bias" and not config.share_relative_bias:
      self.relpos_bias = RelativeBiasTable(config)
    if self.has_cross_attention:
      self.cross_attention, self.cross_attention_norm = Attention(config), Norm(config)
    self.mlp, self.mlp_norm = (Experts if config.num_experts else MLP)(config), Norm(config)
    self.dropout = Dropout(config.dropout_rate)
    for name in ("attention", "cross_attention", "mlp"):
      for build in extensions(self, f"{name}_adapter"):
        setattr(self, f"{name}_adapter", build(config))
      if config.residual != "plain" and hasattr(self, f"{name}_norm"):
        setattr(self, f"{name}_residual", ResidualScale(config))

  def __call__(self, x: jax.Array, cache: dict | None, context: Context) -> tuple[jax.Array, dict | None]:
    keys_values = {}
    if self.config.positions == "relative_bias" and not self.config.share_relative_bias:
      context = dataclasses.replace(context, bias=self.relpos_bias(context.bidirectional))
    h, x = self._read("attention", x, context)
    added = self._added("attention", x, context)
    y, keys_values["self" if context.step is None else "generated"] = self.attention(h, context, cache, **added)
    x = constrain_activations(y) if added else self._add_residual("attention", x, y, h, context)
    # Layers shared by encoder and decoder have a cross-attention that the encoder skips.
    if context.encoded is not None or (cache and "cross" in cache):
      h, x = self._read("cross_attention", x, context)
      added = self._added("cross_attention", x, context)
      y, keys_values["cross"] = self.cross_attention.cross(h, context, cache and cache["cross"], **added)
      x = constrain_activations(y) if added else self._add_residual("cross_attention", x, y, h, context)
    h, x = self._read("mlp", x, context)
    if self.config.num_experts:
      y, routing = self.mlp(h, _valid(context.mask), context.deterministic)
    else:
      y, routing = self.mlp(h, context.deterministic), None
    x = self._add_residual("mlp", x, y, h, context)
    if context.step is not None:
      return x, cache | keys_values
    if context.return_states:
      return x, {"states": x} | (keys_values if context.return_weights else {})
    if context.return_routing:
      return x, {"routing": routing}
    return x, keys_values if context.return_kv else None

  def _read(self, name: str, x: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
    """Returns the input of the sublayer `name` and the residual stream to which its output is added."""
    norm, is_pre = getattr(self, f"{name}_norm"), self.config.norm_position == "pre"
    # With dropout, the result of a sublayer is not added by its last product.
    overwritten = context.deterministic or not self.config.dropout_rate
    h, x = norm(x, with_input=True, overwritten=overwritten) if is_pre else (x, x)
    return (h if self.config.residual == "plain" else getattr(self, f"{name}_residual").read(h)), x

  def _added(self, name: str, x: jax.Array, context: Context) -> dict[str, jax.Array]:
    """Returns {"residual": x} if an attention adds x itself: in a decoding step, if nothing comes between."""
    config, adapter = self.config, getattr(self, f"{name}_adapter", None)
    direct = config.norm_position == "pre" and config.residual == "plain" and adapter is None
    return {"residual": x} if direct and context.step is not None else {}

  def _add_residual(self, name: str, x: jax.Array, y: jax.Array, h: jax.Array, context: Context) -> jax.Array:
    """Adds the result y of the sublayer `name`, whose input is h, to the residual stream x."""
    norm, is_post = getattr(self, f"{name}_norm"), self.config.norm_position == "post"
    if self.config.norm_position == "branch":
      y = norm(y)
    if self.config.residual != "plain":
      y = getattr(self, f"{name}_residual")(y)
    y = self.dropout(y, context.deterministic)
    adapter = getattr(self, f"{name}_adapter", None)
    x = x + y if adapter is None else adapter(x, y, h, norm if is_post else (lambda x: x))
    return constrain_activations(norm(x) if is_post else x)


def _valid(mask: Mask) -> jax.Array | None:
  """Returns [batch, length], True on tokens, as far as a mask knows them."""
  if mask.key_valid is not None:
    return mask.key_valid
  return None if mask.query_segments is None else mask.query_segments > 0
