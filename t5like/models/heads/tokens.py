"""Heads with an answer per token: tags of words, and the first and last token of an answer."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.cross_entropy import cross_entropy
from t5like.models.heads.rows import class_sums
from t5like.models.heads.states import Features, LayerMix, check_labels, check_rates, dropout, output


class TaggingHead(nn.Module):
  """Scores the tags of every token: dropout, then a linear layer.

  The loss counts tokens by `encoder_loss_weights`: the first token of every word.
  """

  labels: tuple[str, ...] = ()  # the names of the tags; (): those of the task
  use_bias: bool = True
  dropout_rate: float | None = None  # None: the backbone's
  mix_layers: bool = False

  form: ClassVar[str] = "tagging"
  pooling: ClassVar[None] = None
  lm_loss_weight: ClassVar[float] = 0.0

  def check(self) -> None:
    """Raises UserError if a setting is invalid."""
    check_labels(self)
    check_rates(self)

  @nn.compact
  def __call__(self, features: Features, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"label_logits": [rows, length, tags]}."""
    states = LayerMix(name="mix")(features.states) if self.mix_layers else features.states
    states = dropout(features.config, self.dropout_rate, states, deterministic)
    return {"label_logits": output(features.config, states, len(self.labels), self.use_bias)}

  def sums(self, outputs: Any, batch: Any, weights: jax.Array, label_smoothing: float = 0.0) -> dict[str, jax.Array]:
    weights = batch["encoder_loss_weights"] * weights[:, None]
    return class_sums(outputs["label_logits"], batch["encoder_target_tokens"], weights, label_smoothing)


class SpanHead(nn.Module):
  """Scores every token as the first and as the last of an answer; the loss is the mean of both cross entropies.

  Labels [rows, 2] are the positions of both; (0, 0), the first token, if the row has no answer.
  """

  use_bias: bool = True
  dropout_rate: float | None = 0.0
  mix_layers: bool = False
  # For inference: there is no answer if its score exceeds the best span's by more (SQuAD 2.0). None: the value that
  # evaluation in training found, or if there is none, every question has an answer.
  no_answer_threshold: float | None = None

  form: ClassVar[str] = "spans"
  pooling: ClassVar[None] = None
  lm_loss_weight: ClassVar[float] = 0.0

  def check(self) -> None:
    check_rates(self)

  @nn.compact
  def __call__(self, features: Features, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"span_logits": [rows, length, 2]}; as in BERT, padding is scored like any token."""
    states = LayerMix(name="mix")(features.states) if self.mix_layers else features.states
    states = dropout(features.config, self.dropout_rate, states, deterministic)
    return {"span_logits": output(features.config, states, 2, self.use_bias)}

  def sums(self, outputs: Any, batch: Any, weights: jax.Array, label_smoothing: float = 0.0) -> dict[str, jax.Array]:
    logits = jnp.swapaxes(outputs["span_logits"], 1, 2)  # [rows, 2, length]
    labels = jnp.where(weights[:, None] > 0, batch["labels"], 0)
    loss, _, best = cross_entropy(logits, labels, 0.0, label_smoothing)  # [rows, 2]
    right = jnp.all(best == labels, axis=1).astype(jnp.float32)
    return {
      "loss": jnp.sum(jnp.mean(loss, axis=1) * weights),
      "accuracy": jnp.sum(right * weights),
      "target_tokens": jnp.sum(weights),
    }
