"""Activation memory of a train step on one device, in bytes per row, from the traced model and the mesh.

One or two layers are traced and the rest is extrapolated, as the layers of a stack are identical. A device with 1/n of
the heads, the MLP and the vocabulary needs as much as a model of that width.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.attention import AttentionSpec, choose_backend, compile_for
from t5like.models.bert import predictions_per_row
from t5like.models.config import TransformerConfig
from t5like.models.heads import WithHead
from t5like.models.stack import choose_layer_loop
from t5like.planning.residuals import Residual, row_bytes, saved_residuals, with_rows

Shapes = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclasses.dataclass(frozen=True)
class Activations:
  """Bytes per row on one device.

  saved       residuals of all layers, from the forward to the backward pass
  recomputed  activations of the largest layer that rematerialization computes again
  working     gradients inside the largest layer
  logits      logits, and their gradient in the compute dtype
  """

  saved: float
  recomputed: float
  working: float
  logits: float


def count_activations(
  model: nn.Module, batch: Mapping[str, Any], tensor: int = 1, platform: str | None = None, by_position: bool = False
) -> Activations:
  """Counts the activations of a train step.

  batch        arrays or shapes [rows, ...]; the number of rows does not matter
  tensor       size of the tensor axis
  platform     selects the attention backend: "cpu", "gpu" or "tpu"; None: this machine's
  by_position  the residual stream is split over the tensor axis too (the preset `sequence`)
  """
  # Layers that share parameters have activations of their own.
  model = model.clone(config=dataclasses.replace(model.config, layer_groups=None, layer_signal=False))
  shapes = tuple((name, tuple(x.shape[1:]), jnp.dtype(x.dtype).name) for name, x in sorted(batch.items()))
  return _count(_narrowed(model, tensor), shapes, tensor if by_position else 1, platform)


@functools.lru_cache(maxsize=256)
def _count(model: nn.Module, shapes: Shapes, positions: int, platform: str | None) -> Activations:
  config = model.config
  trace = functools.partial(_row_bytes, shapes=shapes, platform=platform)
  plain = model.clone(config=dataclasses.replace(config, remat="none", scan_layers=False))
  lengths = _lengths(model, shapes)
  recomputed = 0.0
  if config.remat == "none" and choose_layer_loop(config, platform)[0] == "unrolled":
    saved, _ = _extrapolate_layers(plain, functools.partial(trace, positions=positions, fused=True))
    saved += _deferred_gradients(config, **lengths) if (platform or jax.default_backend()) == "cpu" else 0.0
  else:
    # A loop of any length is traced once; rematerialized layers save the same without a loop.
    looped = model.clone(config=dataclasses.replace(config, scan_layers=True, layer_loop="loop"))
    saved = trace(looped, positions=positions, fused=False)
  if config.remat != "none":
    # While it computes a layer, a device has gathered what is split by position.
    total, largest = _extrapolate_layers(plain, functools.partial(trace, positions=1, fused=True))
    recomputed = largest * max(1.0 - saved / total, 0.0)
  working = _mlp_gradients(config, max(lengths.values()))
  if not recomputed:  # otherwise as much recomputed memory is free again when the scores' gradients are computed
    working = max(working, _score_gradients(config, platform, **lengths))
  return Activations(saved, recomputed, working, _logits(model, lengths))


def _row_bytes(model: nn.Module, shapes: Shapes, positions: int, platform: str | None, fused: bool) -> float:
  batch = with_rows({name: jax.ShapeDtypeStruct((1, *shape), dtype) for name, shape, dtype in shapes})

  def logits(params, batch):
    outputs = model.apply(params, batch, deterministic=False, rngs={"dropout": jax.random.key(0)})
    return {name: x for name, x in outputs.items() if name.endswith("logits")}

  with compile_for(platform):
    params = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))
    arrays = saved_residuals(logits, params, batch, fused)
  if positions == 1:
    return row_bytes(arrays)
  return sum(array.row_bytes / (positions if _has_full_width(array, model.config) else 1) for array in arrays)


def _has_full_width(array: Residual, config: TransformerConfig) -> bool:
  """Returns whether an array belongs to the residual stream, whose width is not split over the tensor axis."""
  return array.shape[-1:] in ((1,), (config.embed_dim,))


def _extrapolate_layers(model: nn.Module, trace: Callable[[nn.Module], float]) -> tuple[float, float]:
  """Returns the bytes of an unrolled model and of its largest layer, from traces of one and two layers."""
  config = model.config

  def depth(encoder: int, decoder: int) -> float:
    sizes = {"num_encoder_layers": encoder, "num_decoder_layers": decoder}
    return trace(model.clone(config=dataclasses.replace(config, **sizes)))

  depths = config.num_encoder_layers, config.num_decoder_layers
  one = depth(*(min(n, 1) for n in depths))
  if config.share_encoder_decoder:
    layer = depth(2, 2) - one
    return one + layer * (depths[0] - 1), layer
  more = [((2, min(depths[1], 1)), depths[0]), ((min(depths[0], 1), 2), depths[1])]
  layers = [(depth(*sizes) - one, count) for sizes, count in more if count]
  return one + sum(size * (count - 1) for size, count in layers), max(size for size, _ in layers)


def _lengths(model: nn.Module, shapes: Shapes) -> dict[str, int]:
  """Returns the tokens of a row in each stack; with a head, all stacks read the batch of an encoder."""
  found = {name: math.prod(shape) for name, shape, _ in shapes}
  lengths = {side: found.get(f"{side}_input_tokens", 0) for side in ("encoder", "decoder")}
  return model.tokens_by_stack(lengths["encoder"]) if isinstance(model, WithHead) else lengths


def _deferred_gradients(config: TransformerConfig, encoder: int, decoder: int) -> float:
  """Returns the gradients of MLP activations that are alive on a CPU, whose scheduler defers the gradients of weights
  in unrolled layers."""
  tokens = encoder * config.num_encoder_layers + decoder * config.num_decoder_layers
  return tokens * config.mlp_dim * config.dtype.itemsize


def _mlp_gradients(config: TransformerConfig, length: int) -> float:
  """Returns the gradients of an MLP's inner arrays, inputs and outputs."""
  inner = 3 if config.gated_mlp else 2
  return length * config.dtype.itemsize * (inner * config.mlp_dim + 2 * config.embed_dim)


def _score_gradients(config: TransformerConfig, platform: str | None, encoder: int, decoder: int) -> float:
  """Returns the gradients of attention scores and softmax in float32, for backends that materialize them."""
  kinds = [(encoder, encoder, False), (decoder, decoder, False), (decoder, encoder, True)]
  written = [kind[0] * kind[1] for kind in kinds if writes_scores(config, *kind[:2], platform, is_cross=kind[2])]
  return 2 * 4 * config.num_heads * max(written, default=0)


def writes_scores(
  config: TransformerConfig, queries: int, keys: int, platform: str | None, is_cross: bool = False
) -> bool:
  """Returns whether a train step's attention materializes its scores."""
  rate = config.attention_dropout
  case = AttentionSpec(config.compute_dtype, config.head_dim, queries, keys, dropout=rate > 0.0)
  synthesized = config.synthesizer != "none" and not is_cross
  case = dataclasses.replace(case, positions=config.positions, synthesized=synthesized)
  with compile_for(platform):
    return queries * keys > 0 and choose_backend(config.attention_backend, case)[0] == "xla"


def _logits(model: nn.Module, lengths: Mapping[str, int]) -> float:
  """Returns the bytes of the logits, and of their gradient in the compute dtype."""
  config = model.config
  if isinstance(model, WithHead) and not model.head.lm_loss_weight:
    return 0.0
  if not lengths["decoder"] and not config.mlm_head:
    return 0.0
  predicted = lengths["decoder"] or predicted_positions(model, lengths["encoder"])
  return predicted * config.vocab_size * (jnp.dtype(config.logits_dtype).itemsize + config.dtype.itemsize)


def predicted_positions(model: nn.Module, length: int) -> int:
  """Returns the number of positions per row for which an encoder computes logits in training."""
  share, length = getattr(model, "predicted_share", 1.0), length - getattr(model, "memory_length", 0)
  return length if share >= 1.0 else predictions_per_row(share, length)


def _narrowed(model: nn.Module, tensor: int) -> nn.Module:
  config = model.config
  if tensor == 1:
    return model
  sizes = {"num_heads": config.num_heads, "mlp_dim": config.mlp_dim, "vocab_size": config.vocab_size}
  if config.num_kv_heads:
    sizes["num_kv_heads"] = config.num_kv_heads
  return model.clone(config=dataclasses.replace(config, **{name: -(-n // tensor) for name, n in sizes.items()}))
