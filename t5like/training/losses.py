"""The training loss: cross entropy of target tokens, and of row labels where a batch has them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.kernels.cross_entropy import cross_entropy
from t5like.training.detection import COUNTS


@dataclasses.dataclass(frozen=True)
class LossSettings:
  """Settings of the loss and of the step that minimizes it.

  z_loss           weight of log(Z)^2, which keeps the softmax normalizer Z near 1
  label_smoothing  share of the target probability that is spread over the vocabulary
  microbatches     gradient accumulation steps: 1/n of the activation memory, the same update
  normalizer       divisor of the summed loss; None: the number of real target tokens in the global batch.
                   T5 used a constant, so that a batch with fewer targets had a smaller update
  guard            skip the update of a step whose loss or gradients are not finite; only the step counter changes
  layer_norms      report the norms of parameters, gradients and updates of every layer
  """

  z_loss: float = 1e-4
  label_smoothing: float = 0.0
  microbatches: int = 1
  normalizer: float | None = None
  guard: bool = True
  layer_norms: bool = False

  def __post_init__(self):
    if not 0 <= self.z_loss < math.inf:
      raise UserError(f"invalid z_loss: {self.z_loss!r}", expected="0 or more")
    if not 0 <= self.label_smoothing < 1:
      raise UserError(f"invalid label_smoothing: {self.label_smoothing!r}", expected="at least 0 and below 1")
    if self.microbatches < 1:
      raise UserError(f"invalid number of microbatches: {self.microbatches!r}", expected="1 or more")
    if self.normalizer is not None and not self.normalizer > 0:
      raise UserError(
        f"invalid loss normalizer: {self.normalizer!r}",
        expected="a number above 0, or None to divide by the number of target tokens",
      )


class Divisors(NamedTuple):
  """Divisors of the summed losses, of the global batch, so that the losses of its microbatches add up to its loss."""

  tokens: jax.Array  # float32: divides the sum over target tokens
  rows: jax.Array  # float32: divides the sum over row labels
  auxiliary: Mapping[str, jax.Array] = {}  # float32: divides the sums of losses that the model adds, by name


def divisors(batch: Mapping[str, jax.Array], settings: LossSettings) -> Divisors:
  """Returns the divisors for the losses of `batch` and of any part of it."""
  if settings.normalizer is None:
    tokens = jnp.maximum(jnp.sum(batch[f"{_side(batch)}_loss_weights"]), 1.0)
  else:
    tokens = jnp.asarray(settings.normalizer, jnp.float32)
  return Divisors(tokens, jnp.maximum(jnp.sum(_real_rows(batch)), 1.0))


def loss_and_metrics(
  outputs: Mapping[str, jax.Array], batch: Any, settings: LossSettings, divide_by: Divisors | None = None
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns the loss, and metrics that add up over microbatches.

  Where a batch has `labels`, one per row, their mean loss is added, as in BERT's next-sentence prediction; so are the
  losses that the model returns as "auxiliary" (models/auxiliary.py). `divide_by` are the divisors of the global batch
  where `batch` is a microbatch.
  """
  divide_by = divide_by or divisors(batch, settings)
  metrics = _token_sums(outputs, batch, settings.z_loss, settings.label_smoothing)
  loss = metrics["loss"] / divide_by.tokens
  if "labels" in batch:
    sentences = _sentence_sums(outputs, batch)
    metrics["sentence_loss"] = sentences["sentence_loss"] / divide_by.rows
    metrics["sentence_accuracy"] = sentences["sentence_accuracy"] / divide_by.rows
    loss += metrics["sentence_loss"]
  if COUNTS in outputs:
    metrics[COUNTS] = outputs[COUNTS]
  return add_auxiliary(loss, metrics, outputs.get("auxiliary", {}), divide_by.auxiliary)


def add_auxiliary(
  loss: jax.Array, metrics: dict[str, jax.Array], terms: Mapping[str, Any], divide_by: Mapping[str, jax.Array]
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Adds losses by name (models/auxiliary.py) to a loss and its metrics.

  One without a divisor of the global batch is divided by the sum of its own weights.
  """
  for name, term in terms.items():
    total = jnp.sum(term.weights) if name not in divide_by else divide_by[name]
    metrics = {**metrics, name: jnp.sum(term.losses * term.weights) / jnp.maximum(total, 1.0)}
    loss += term.weight * metrics[name]
  return loss, metrics


def evaluation_sums(outputs: Mapping[str, jax.Array], batch: Any) -> dict[str, jax.Array]:
  """Returns sums over target tokens (and labeled rows) with their counts: add over batches, then divide.

  The loss is plain cross entropy, so that exp(loss / target_tokens) is the perplexity.
  """
  sums = _token_sums(outputs, batch, z_loss=0.0, label_smoothing=0.0)
  del sums["z_loss"]
  for name, term in outputs.get("auxiliary", {}).items():
    sums |= {name: jnp.sum(term.losses * term.weights), f"{name}_count": jnp.sum(term.weights)}
  sums |= {COUNTS: outputs[COUNTS]} if COUNTS in outputs else {}
  return sums | (_sentence_sums(outputs, batch) if "labels" in batch else {})


def _token_sums(outputs: Any, batch: Any, z_loss: float, label_smoothing: float) -> dict[str, jax.Array]:
  logits, side = outputs["logits"], _side(batch)
  targets, weights = batch[f"{side}_target_tokens"], batch[f"{side}_loss_weights"]
  if "predicted" in outputs:  # logits of these positions only
    targets, weights = (jnp.take_along_axis(x, outputs["predicted"], axis=1) for x in (targets, weights))
  vocab = logits.shape[-1]
  loss, z_part, best = cross_entropy(outputs.get("padded_logits", logits), targets, z_loss, label_smoothing, vocab)
  right = (best == targets).astype(jnp.float32)
  return {
    "loss": jnp.sum(loss * weights),
    "z_loss": jnp.sum(z_part * weights),
    "accuracy": jnp.sum(right * weights),
    "target_tokens": jnp.sum(weights),
  }


def _sentence_sums(outputs: Any, batch: Any) -> dict[str, jax.Array]:
  logits, labels, real = outputs["nsp_logits"], batch["labels"], _real_rows(batch)
  loss, _, best = cross_entropy(logits, labels, 0.0, 0.0)
  right = (best == labels).astype(jnp.float32)
  return {
    "sentence_loss": jnp.sum(loss * real),
    "sentence_accuracy": jnp.sum(right * real),
    "sentences": jnp.sum(real),
  }


def _side(batch: Mapping[str, Any]) -> str:
  return "decoder" if "decoder_target_tokens" in batch else "encoder"


def _real_rows(batch: Mapping[str, jax.Array]) -> jax.Array:
  """Returns [batch] float32: 0 for padding rows, which have no tokens."""
  tokens = batch.get(f"{_side(batch)}_input_tokens")
  if tokens is None:
    return jnp.ones(batch[f"{_side(batch)}_target_tokens"].shape[0], jnp.float32)
  return jnp.any(tokens > 0, axis=1).astype(jnp.float32)
