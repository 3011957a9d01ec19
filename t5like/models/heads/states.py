"""The input of a head: a backbone's states, and what heads do with them before their own layers."""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError, nearest
from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.models.config import TransformerConfig
from t5like.models.layers import Dropout, dense

POOLINGS = ("pooler", "cls", "mean", "max", "last", "concat")
HIDDEN = {"tanh": jnp.tanh, **ACTIVATIONS}


@dataclasses.dataclass(frozen=True)
class Features:
  """The states of a backbone that a head reads."""

  config: TransformerConfig
  states: jax.Array  # [rows, length, embed]; for a mix of layers [layers + 1, rows, length, embed], embeddings first
  valid: jax.Array  # [rows, length] bool: False on padding
  pooler: Callable[[jax.Array], jax.Array] | None = None  # BERT's: [rows, length, embed] -> [rows, embed]
  texts: int | None = None  # per row of a batch [rows, texts, length]; None: it is [rows, length]


class LayerMix(nn.Module):
  """gamma * sum_j softmax(w)_j h_j over the embeddings and all layers (Peters et al. 2018, equation 1)."""

  @nn.compact
  def __call__(self, states: jax.Array) -> jax.Array:  # [layers + 1, ..., embed] -> [..., embed]
    whole = nn.with_logical_partitioning(nn.initializers.zeros, (None,))
    weights = jax.nn.softmax(self.param("weights", whole, states.shape[:1], jnp.float32))
    gamma = self.param("gamma", nn.initializers.ones, (), jnp.float32)
    mixed = jnp.tensordot(weights, states.astype(jnp.float32), axes=1)
    return (gamma * mixed).astype(states.dtype)


def pool(features: Features, states: jax.Array, pooling: str) -> jax.Array:
  """Returns one vector per row, [rows, embed], of states [rows, length, embed]; "concat": [rows, 3 embed]."""
  if pooling == "concat":  # Howard and Ruder 2018, section 3.3
    return jnp.concatenate([pool(features, states, part) for part in ("last", "max", "mean")], axis=-1)
  valid = features.valid[..., None]
  if pooling == "pooler":
    return features.pooler(states)
  if pooling == "cls":
    return states[:, 0]
  if pooling in ("mean", "mean_sqrt_length"):
    count = jnp.maximum(jnp.sum(valid, axis=1), 1).astype(states.dtype)
    return jnp.sum(jnp.where(valid, states, 0), axis=1) / (count if pooling == "mean" else jnp.sqrt(count))
  if pooling == "max":
    lowest = jnp.finfo(states.dtype).min
    return jnp.max(jnp.where(valid, states, lowest), axis=1)
  if pooling == "weighted_mean":  # weights 1 to n, for causal models (Muennighoff 2022)
    weights = jnp.where(valid, jnp.arange(1, states.shape[1] + 1)[None, :, None], 0).astype(states.dtype)
    return jnp.sum(states * weights, axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1)
  last = jnp.maximum(jnp.sum(features.valid, axis=1) - 1, 0)  # [rows]: rows are padded on the right
  return jnp.take_along_axis(states, last[:, None, None], axis=1)[:, 0]


def check_labels(head: Any) -> None:
  labels = head.labels
  if len(labels) < 2 or len(set(labels)) < len(labels) or not all(isinstance(label, str) for label in labels):
    raise UserError(f"invalid {type(head).__name__}.labels: {labels!r}", expected="two or more different names")


def check_rates(head: Any) -> None:
  """Raises UserError if a dropout rate or a weight of a head is out of range."""
  settings = {name: getattr(head, name, None) for name in ("dropout_rate", "pooled_dropout_rate", "lm_loss_weight")}
  for name, value in settings.items():
    most = math.inf if name == "lm_loss_weight" else 1.0
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if value is not None and not (is_number and 0.0 <= value < most):
      expected = "a number from 0" if most == math.inf else "0 <= rate < 1"
      raise UserError(f"invalid {type(head).__name__}.{name}: {value!r}", expected=expected)


def check_pooling(head: str, pooling: str, mix_layers: bool) -> None:
  if pooling not in POOLINGS:
    raise UserError(
      f"invalid {head}.pooling: {pooling!r}", nearest=nearest(str(pooling), POOLINGS), known=", ".join(POOLINGS)
    )
  if pooling == "pooler" and mix_layers:
    raise UserError(
      f"{head}.mix_layers does not go with pooling = 'pooler', which was trained on the last layer alone",
      try_=f"--gin.{head}.pooling=cls (or mean)",
    )


def output(config: TransformerConfig, x: jax.Array, classes: int, use_bias: bool = True) -> jax.Array:
  """Returns logits [..., classes] of x [..., embed] in the logits dtype. Call within a compact method."""
  layer = dense(config, classes, ("embed", None), use_bias=use_bias, name="out")
  return layer(x).astype(jnp.dtype(config.logits_dtype))


def dropout(config: TransformerConfig, rate: float | None, x: jax.Array, deterministic: bool) -> jax.Array:
  """Applies the head's dropout; None: the rate of the backbone."""
  return Dropout(config.dropout_rate if rate is None else rate)(x, deterministic)
