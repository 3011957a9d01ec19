"""A model for labels: a backbone and a head, which owns the loss."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.kernels.cross_entropy import cross_entropy
from t5like.models.config import TransformerConfig
from t5like.models.heads.states import Features
from t5like.models.padding import encoder_valid
from t5like.models.tuning import Tunable

Batch = Mapping[str, jax.Array]


class HeadDivisors(NamedTuple):
  """Divisors of summed losses, of the global batch."""

  rows: jax.Array  # of the head's loss: rows, or the tokens that a tagging head counts
  tokens: jax.Array  # of the auxiliary language modeling loss


class WithHead(Tunable):
  """A backbone with a head. Parameters: {"backbone": those of the backbone, "head": those of the head}.

  Batches are those of an encoder for every backbone: `encoder_input_tokens`, `encoder_segment_ids` (0 on padding),
  `encoder_positions`, `encoder_token_types` [rows, length], and labels as the head needs them. BERT reads them as they
  are. GPT and LSTMs read the same tokens. T5 encodes them; for a head on one state per row and for spans, its decoder
  reads them too, shifted by one, as in Hugging Face's classes; for tags and embeddings, only the encoder runs.

  stack  of T5: "encoder" or "decoder"; None: as above.
  layer  whose states the head reads: 0 are the embeddings, -1 the last layer; None: the last, or a mix (`mix_layers`)
  """

  backbone: nn.Module
  head: nn.Module
  stack: str | None = None
  layer: int | None = None

  @property
  def config(self) -> TransformerConfig:
    return self.backbone.config

  @nn.nowrap
  def clone(self, *, config: TransformerConfig | None = None, **changes: Any) -> "WithHead":
    """Returns a copy with changes; `config` is the backbone's."""
    if config is not None:
      changes["backbone"] = self.backbone.clone(config=config)
    return super().clone(**changes)

  @property
  def batch_layout(self) -> str:
    return "encoder"

  @property
  def runs_decoder(self) -> bool:
    """Whether the head reads states of a decoder."""
    if self.backbone.batch_layout != "encoder_decoder":
      return self.backbone.batch_layout != "encoder"
    return (self.stack or ("encoder" if self.head.form in ("tagging", "embedding") else "decoder")) == "decoder"

  @property
  def texts_per_row(self) -> int:
    """The number of texts in a row of a batch: the choices of a question, the texts to embed, else 1."""
    return max(getattr(self.head, "choices", 1), getattr(self.head, "texts", 1), 1)

  @property
  def compares_rows(self) -> bool:
    """Whether the loss of a row depends on the other rows of the batch: see training/step.py."""
    return getattr(self.head, "compares_rows", False)

  def tokens_by_stack(self, tokens: int) -> dict[str, int]:
    """Returns the tokens that encoder and decoder read of a text with `tokens`; 0 for a stack that does not run."""
    encodes = self.backbone.batch_layout in ("encoder", "encoder_decoder")
    return {"encoder": tokens if encodes else 0, "decoder": tokens if self.runs_decoder else 0}

  def check(self) -> None:
    """Raises UserError if backbone and head do not fit, before anything is compiled."""
    self.head.check()
    layout, name = self.backbone.batch_layout, type(self.backbone).__name__
    if self.stack not in (None, "encoder", "decoder") or (self.stack and layout != "encoder_decoder"):
      raise UserError(f"invalid WithHead.stack: {self.stack!r} for {name}", expected="None; T5: encoder or decoder")
    self._check_layer()
    if self.head.pooling == "pooler" and (layout != "encoder" or not self.config.pooler):
      raise UserError(
        f"{name} has no pooler", try_=f"--gin.{type(self.head).__name__}.pooling=last (or mean, max, cls)"
      )
    if self.head.form == "embedding" and "cls" in self.head.pooling and layout in ("decoder", "prefix_lm"):
      raise UserError(f"the first token of {name} does not read the others", try_="--gin.EmbeddingHead.pooling=last")
    if self.head.lm_loss_weight and (layout != "decoder" or getattr(self.backbone, "bidirectional", False)):
      raise UserError(
        f"lm_loss_weight = {self.head.lm_loss_weight} needs a causal language model, not {name}",
        try_=f"--gin.{type(self.head).__name__}.lm_loss_weight=0.0",
      )

  def _check_layer(self) -> None:
    depth = getattr(self.config, f"num_{'decoder' if self.runs_decoder else 'encoder'}_layers")
    if self.layer is None:
      return
    if not -depth - 1 <= self.layer <= depth:
      expected = f"0 (the embeddings) to {depth}, or -1 (the last) to {-depth - 1}"
      raise UserError(f"invalid layer of a head: {self.layer}", expected=expected)
    if self.head.mix_layers or self.head.pooling == "pooler" or self.head.lm_loss_weight:
      raise UserError(
        "a head that reads one layer has no mix of layers, no pooler and no language modeling loss",
        try_="--gin.HEAD=@Probe()",
      )

  def __call__(self, batch: Batch, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns the head's "label_logits", "span_logits" or "embeddings"; with an auxiliary loss, also "logits"."""
    self.check()
    tokens = batch["encoder_input_tokens"]
    texts = tokens.shape[1] if tokens.ndim == 3 else None
    # Choices and texts [rows, choices, length] are rows of the backbone.
    batch = {name: x.reshape(-1, x.shape[-1]) if x.ndim == 3 else x for name, x in batch.items()}
    states = self._states(batch, deterministic)
    pooler = None
    if self.head.pooling == "pooler":
      pooler = lambda states: self.backbone.sentence_outputs(states)["pooled"]  # noqa: E731
    outputs = self.head(Features(self.config, states, self._valid(batch), pooler, texts), deterministic)
    if self.head.lm_loss_weight:
      outputs["logits"] = self.backbone.project(states[-1] if self.head.mix_layers else states)
    return outputs

  def hidden_states(self, batch: Batch, deterministic: bool = True) -> jax.Array:
    """Returns the backbone's last hidden states [rows, length, embed]; of its encoder if it has one."""
    if self.backbone.batch_layout == "encoder_decoder":
      return self.backbone.encode(batch, deterministic)
    return self._read(batch, deterministic, every=False)

  def _states(self, batch: Batch, deterministic: bool) -> jax.Array:
    """Returns [rows, length, embed], or the states of all layers for a mix."""
    states = self._read(batch, deterministic, self.head.mix_layers or self.layer is not None)
    return states if self.layer is None else states[self.layer]

  def _read(self, batch: Batch, deterministic: bool, every: bool) -> jax.Array:
    """Returns the last states of the head's stack, or those of every layer."""
    kind = self.backbone.batch_layout
    if kind == "encoder":
      return self.backbone.hidden_states(_without_segments(batch, self._valid(batch)), deterministic, every)
    tokens = batch["encoder_input_tokens"]
    if kind == "encoder_decoder":
      if not self.runs_decoder:
        return self.backbone.encode(batch, deterministic, every)
      # Padding follows all tokens, so causality hides it, but it is scored as a possible end of an answer span.
      tokens = jnp.where(self._valid(batch), tokens, self.config.padding_id)
      shifted = jnp.pad(tokens, ((0, 0), (1, 0)), constant_values=self.config.start_id or 0)[:, :-1]
      inputs = {name: batch[name] for name in _ENCODER if name in batch}
      return self.backbone.hidden_states(inputs | {"decoder_input_tokens": shifted}, deterministic, every)
    inputs = {"decoder_input_tokens": tokens}
    if getattr(self.backbone, "bidirectional", False):
      inputs["decoder_segment_ids"] = self._valid(batch).astype(jnp.int32)
    if kind == "prefix_lm":
      inputs["decoder_causal_attention"] = self._valid(batch).astype(jnp.int32)
    return self.backbone.hidden_states(inputs, deterministic, every)

  def _valid(self, batch: Batch) -> jax.Array:
    """Returns [rows, length]: False on padding."""
    return encoder_valid(batch, self.config.padding_id)

  # The loss: see training/step.py, which looks for these methods.

  def divisors(self, batch: Batch, settings: Any) -> HeadDivisors:
    """Returns the divisors of the losses of `batch` and of any part of it."""
    counted = _rows(batch)
    if self.head.form == "tagging":
      counted = batch["encoder_loss_weights"] * counted[:, None]
    rows = jnp.maximum(jnp.sum(counted), 1.0)
    if settings.normalizer is not None:
      rows = jnp.asarray(settings.normalizer, jnp.float32)
    return HeadDivisors(rows, jnp.maximum(jnp.sum(_next_tokens(batch)[1]), 1.0))

  def loss(
    self, outputs: Mapping[str, jax.Array], batch: Batch, settings: Any, divide_by: HeadDivisors | None = None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the head's mean loss (plus the auxiliary one), and metrics that add up over microbatches.

    Label smoothing applies to classes; the z-loss, which is for large vocabularies, does not.
    """
    divide_by = divide_by or self.divisors(batch, settings)
    metrics = self.head.sums(outputs, batch, _rows(batch), settings.label_smoothing)
    loss = metrics["loss"] / divide_by.rows
    if self.head.lm_loss_weight:
      targets, weights = _next_tokens(batch)
      losses, *_ = cross_entropy(outputs["logits"], targets, 0.0, 0.0)
      metrics["lm_loss"] = jnp.sum(losses * weights) / divide_by.tokens
      loss += self.head.lm_loss_weight * metrics["lm_loss"]
    return loss, metrics

  def evaluation_sums(self, outputs: Mapping[str, jax.Array], batch: Batch) -> dict[str, jax.Array]:
    """Returns sums of the head's loss and their count; rows whose label is withheld (-1) do not count."""
    weights = _rows(batch)
    if self.head.form in ("classification", "choices"):
      weights *= (batch["labels"] >= 0).astype(jnp.float32)
    if self.head.form == "multi_label":
      weights *= jnp.all(batch["labels"] >= 0, axis=1).astype(jnp.float32)
    return self.head.sums(outputs, batch, weights)


# The settings of heads by layout: of BERT with and without pooler, T5 and GPT-2.
_LAYOUTS = {
  "pooler": {"pooling": "pooler"},
  "encoder": {"pooling": "cls", "hidden": "tanh"},
  "encoder_decoder": {"pooling": "last", "hidden": "tanh"},
  "decoder": {"pooling": "last", "use_bias": False},
  "prefix_lm": {"pooling": "last", "use_bias": False},
}
# The settings of heads by the family of a backbone, where they are not those of its layout.
_CLS_AND_TANH = {"pooling": "cls", "hidden": "tanh"}
_CLS_AND_GELU = {"pooling": "cls", "hidden": "gelu_erf", "pooled_dropout_rate": 0.0}
_FAMILIES = {
  "roberta": _CLS_AND_TANH,
  "xlm-roberta": _CLS_AND_TANH,
  "distilbert": {"pooling": "cls", "hidden": "relu", "pooled_dropout_rate": 0.0},
  "electra": {"pooling": "cls", "hidden": "gelu_erf"},
  "xlnet": {"pooling": "last", "hidden": "tanh", "pooled_dropout_rate": 0.0},
  # ULMFiT without its batch norms: a train step has no running means.
  "awd_lstm": {
    "pooling": "concat",
    "hidden": "relu",
    "hidden_dim": 50,
    "pooled_dropout_rate": 0.4,
    "dropout_rate": 0.1,
  },
  "elmo": {"pooling": "max"},
  **dict.fromkeys(("deberta", "deberta-v2"), _CLS_AND_GELU),
}
# Of multiple choice, where they are others.
_CHOICES = {
  "roberta": _LAYOUTS["pooler"],
  "xlm-roberta": _LAYOUTS["pooler"],
  "electra": _CLS_AND_GELU,
}
_ENCODER = ("encoder_input_tokens", "encoder_segment_ids", "encoder_positions")


def _without_segments(batch: Batch, valid: jax.Array) -> Batch:
  """Returns the batch with lengths instead of segments and positions: rows with labels are not packed.

  Padding then attends to the text and has its own positions, as in Hugging Face, where it counts in the softmax of
  answer spans.
  """
  kept = {name: x for name, x in batch.items() if name not in ("encoder_segment_ids", "encoder_positions")}
  return kept | {"encoder_lengths": jnp.sum(valid, axis=1, dtype=jnp.int32)}


def _rows(batch: Batch) -> jax.Array:
  """Returns [rows] float32: 0 for filler rows, which have no tokens."""
  tokens = batch["encoder_segment_ids"] if "encoder_segment_ids" in batch else batch["encoder_input_tokens"]
  return jnp.any(tokens > 0, axis=tuple(range(1, tokens.ndim))).astype(jnp.float32)


def _next_tokens(batch: Batch) -> tuple[jax.Array, jax.Array]:
  """Returns the next token at every position and its weight, [rows, length]; the last position has none."""
  tokens, valid = batch["encoder_input_tokens"], encoder_valid(batch)
  shift = lambda x: jnp.concatenate([x[..., 1:], jnp.zeros_like(x[..., :1])], axis=-1)  # noqa: E731
  return shift(tokens), shift(valid).astype(jnp.float32)


def attach_head(model: nn.Module, head: nn.Module) -> WithHead:
  """Returns a model with this head, whose `pooling` may be None for that of the family, as in Hugging Face's classes.

  Parts of the backbone that the head does not use are removed from its config.
  """
  backbone = model.backbone if isinstance(model, WithHead) else model
  config = backbone.config
  if head.pooling is None and head.form in ("classification", "multi_label", "regression", "choices"):
    settings = {"use_bias": True} | _default_settings(backbone, head)
    head = head.clone(**settings | ({"hidden": head.hidden} if head.hidden else {}))
  if backbone.batch_layout == "encoder":
    config = dataclasses.replace(
      config, mlm_head=False, nsp_head=False, discriminator_head=False, pooler=head.pooling == "pooler"
    )
    backbone = backbone.clone(config=config)
  result = WithHead(backbone, head)
  result.check()
  return result


def _default_settings(backbone: nn.Module, head: nn.Module) -> dict[str, Any]:
  """Returns the settings of a family's heads with one answer per row, as in Hugging Face's classes."""
  family = getattr(backbone, "family", "")
  own = _CHOICES.get(family) if head.form == "choices" else None
  if own is not None and not (head.mix_layers and own["pooling"] == "pooler"):
    return own
  pooled = backbone.config.pooler and not head.mix_layers
  return _FAMILIES.get(family) or _LAYOUTS["pooler" if pooled else backbone.batch_layout]
