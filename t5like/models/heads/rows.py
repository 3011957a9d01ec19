"""Heads with one answer per row: a class, several labels, a score, or one of several choices."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError, nearest
from t5like.kernels.cross_entropy import cross_entropy
from t5like.models.heads.states import (
  HIDDEN,
  Features,
  LayerMix,
  check_labels,
  check_pooling,
  check_rates,
  dropout,
  output,
  pool,
)
from t5like.models.layers import dense


class ClassificationHead(nn.Module):
  """Scores the classes of a row: dropout, a linear layer; with `hidden`, a dense layer and its dropout before it.

  BERT: pooling "pooler". RoBERTa: "cls" and hidden "tanh". DistilBERT: "cls" and hidden "relu".
  GPT-2: "last", without bias. T5: "last" and hidden "tanh". ULMFiT: "concat" (last, max, mean) and 50 hidden "relu".
  """

  labels: tuple[str, ...] = ()  # the names of the classes; (): those of the task
  pooling: str | None = None  # one of POOLINGS; None: the backbone's, with its `hidden` and `use_bias`
  hidden: str | None = None  # activation of the dense layer, None for no layer
  hidden_dim: int | None = None  # its width; None: the backbone's
  use_bias: bool = True
  dropout_rate: float | None = None  # None: the backbone's
  pooled_dropout_rate: float | None = None  # before the dense layer; None: dropout_rate
  mix_layers: bool = False  # a learned mix of all layers instead of the last
  lm_loss_weight: float = 0.0  # GPT: adds the language modeling loss of the row (Radford et al. 2018, equation 5)

  form: ClassVar[str] = "classification"

  def check(self) -> None:
    """Raises UserError if a setting is invalid."""
    _check(self)
    check_labels(self)

  @nn.compact
  def __call__(self, features: Features, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"label_logits": [rows, classes]}."""
    return {"label_logits": _score_rows(self, features, len(self.labels), deterministic)}

  def sums(self, outputs: Any, batch: Any, weights: jax.Array, label_smoothing: float = 0.0) -> dict[str, jax.Array]:
    return class_sums(outputs["label_logits"], batch["labels"], weights, label_smoothing)


class MultiLabelHead(ClassificationHead):
  """Scores labels of which a row may have any number: a sigmoid and a binary cross entropy for each.

  Labels [rows, classes] are 0 or 1. The loss of a row is the mean over its classes, as in Hugging Face.
  """

  form: ClassVar[str] = "multi_label"

  def sums(self, outputs: Any, batch: Any, weights: jax.Array, label_smoothing: float = 0.0) -> dict[str, jax.Array]:
    logits, labels = outputs["label_logits"].astype(jnp.float32), batch["labels"].astype(jnp.float32)
    targets = labels * (1.0 - label_smoothing) + 0.5 * label_smoothing
    losses = jax.nn.softplus(logits) - logits * targets
    right = ((logits > 0) == (labels > 0)).astype(jnp.float32)
    return {
      "loss": jnp.sum(jnp.mean(losses, axis=1) * weights),
      "accuracy": jnp.sum(jnp.mean(right, axis=1) * weights),
      "target_tokens": jnp.sum(weights),
    }


class RegressionHead(nn.Module):
  """Predicts a number per row, trained with the mean squared error."""

  pooling: str | None = None
  hidden: str | None = None
  hidden_dim: int | None = None
  use_bias: bool = True
  dropout_rate: float | None = None
  pooled_dropout_rate: float | None = None
  mix_layers: bool = False
  lm_loss_weight: float = 0.0

  form: ClassVar[str] = "regression"

  def check(self) -> None:
    _check(self)

  @nn.compact
  def __call__(self, features: Features, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"label_logits": [rows, 1]}."""
    return {"label_logits": _score_rows(self, features, 1, deterministic)}

  def sums(self, outputs: Any, batch: Any, weights: jax.Array, label_smoothing: float = 0.0) -> dict[str, jax.Array]:
    errors = outputs["label_logits"][:, 0].astype(jnp.float32) - batch["labels"].astype(jnp.float32)
    return {"loss": jnp.sum(jnp.square(errors) * weights), "target_tokens": jnp.sum(weights)}


class MultipleChoiceHead(nn.Module):
  """Scores each choice of a question separately; the softmax is over the choices.

  Its batches have tokens [rows, choices, length], or [rows, length] with one choice each; labels [rows] are the number
  of the right choice.
  """

  choices: int = 0  # per question, in training; 0: as in the task
  pooling: str | None = None
  hidden: str | None = None
  hidden_dim: int | None = None
  use_bias: bool = True
  dropout_rate: float | None = None
  pooled_dropout_rate: float | None = None
  mix_layers: bool = False

  form: ClassVar[str] = "choices"
  lm_loss_weight: ClassVar[float] = 0.0

  def check(self) -> None:
    _check(self)
    if self.choices < 2:
      raise UserError(f"invalid MultipleChoiceHead.choices: {self.choices!r}", expected="2 or more")

  @nn.compact
  def __call__(self, features: Features, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"label_logits": [rows, choices]}, given [rows * choices] rows of features; any number of choices."""
    scores = _score_rows(self, features, 1, deterministic)
    return {"label_logits": scores.reshape(-1, features.texts or 1)}

  def sums(self, outputs: Any, batch: Any, weights: jax.Array, label_smoothing: float = 0.0) -> dict[str, jax.Array]:
    return class_sums(outputs["label_logits"], batch["labels"], weights, label_smoothing)


def _check(head: Any) -> None:
  name = type(head).__name__
  if head.hidden_dim is not None and head.hidden_dim < 1:
    raise UserError(f"invalid {name}.hidden_dim: {head.hidden_dim!r}", expected="a positive number, or None")
  check_rates(head)
  check_pooling(name, head.pooling, head.mix_layers)
  if head.hidden is not None and head.hidden not in HIDDEN:
    raise UserError(
      f"invalid {name}.hidden: {head.hidden!r}", nearest=nearest(str(head.hidden), HIDDEN), known=", ".join(HIDDEN)
    )


def _score_rows(head: Any, features: Features, classes: int, deterministic: bool) -> jax.Array:
  """Returns [rows, classes]: pooling, dropout, (dense, activation, dropout,) linear, as in Hugging Face's heads."""
  config = features.config
  states = LayerMix(name="mix")(features.states) if head.mix_layers else features.states
  x = nn.with_logical_constraint(pool(features, states, head.pooling), ("batch", None))
  first = head.dropout_rate if head.hidden is None or head.pooled_dropout_rate is None else head.pooled_dropout_rate
  x = dropout(config, first, x, deterministic)
  if head.hidden is not None:
    width = head.hidden_dim or config.embed_dim
    x = HIDDEN[head.hidden](dense(config, width, ("embed", "mlp"), use_bias=True, name="dense")(x))
    x = nn.with_logical_constraint(x, ("batch", None))
    x = dropout(config, head.dropout_rate, x, deterministic)
  return output(config, x, classes, head.use_bias)


def class_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array, smoothing: float) -> dict[str, jax.Array]:
  """Returns sums of cross entropy, right classes and weights, of logits [..., classes]."""
  labels = jnp.where(weights > 0, labels, 0)  # that of a filler row, or a withheld one, is not a class
  loss, _, best = cross_entropy(logits, labels, 0.0, smoothing)
  right = (best == labels).astype(jnp.float32)
  return {
    "loss": jnp.sum(loss * weights), "accuracy": jnp.sum(right * weights), "target_tokens": jnp.sum(weights),
  }  # fmt: skip
