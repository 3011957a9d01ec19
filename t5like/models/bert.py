"""BERT: a bidirectional encoder with masked-token and next-sentence heads (Devlin et al. 2018)."""

import dataclasses
import math
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError, nearest
from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.kernels.attention import Mask
from t5like.models.attention import Context
from t5like.models.config import TransformerConfig
from t5like.models.embedder import Embedder, with_prompt_positions
from t5like.models.layers import Norm, dense
from t5like.models.padding import as_in_pretraining, encoder_valid, prepend
from t5like.models.stack import Stack, all_states
from t5like.models.tuning import Tunable

Batch = Mapping[str, jax.Array]
FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta", "deberta-v2")


class BERT(Tunable):
  """Encoder-only model with the heads enabled in the config. Rows must be padded on the right, as data/ does.

  predicted_share  in training, logits are computed for at most this fraction of a row's positions, those with targets:
                   0.16 for objectives that mask 15%. A row with more targets makes the loss NaN, rather than silently
                   training on some of them.
  family           the published models whose default heads and Hugging Face classes it has, by their model_type
  """

  config: TransformerConfig
  predicted_share: float = 1.0
  family: str = "bert"

  def setup(self):
    config = self.config
    config.require_layers("BERT", "num_encoder_layers")
    if not 0.0 < self.predicted_share <= 1.0:
      raise UserError(f"invalid BERT.predicted_share: {self.predicted_share!r}", expected="0 < share <= 1")
    if self.family not in FAMILIES:
      raise UserError(
        f"invalid BERT.family: {self.family!r}", nearest=nearest(self.family, FAMILIES), known=", ".join(FAMILIES)
      )
    self.token_embedder = Embedder(config)
    self.encoder = Stack(config, config.num_encoder_layers)
    if config.mlm_head:
      self.mlm_head = MLMHead(config)
    if config.discriminator_head:
      self.discriminator_head = ReplacedTokenHead(config)
    if config.pooler:
      self.pooler = dense(config, config.embed_dim, ("embed", "mlp"))
    if config.nsp_head:
      self.nsp_head = dense(config, 2, ("embed", None))

  @property
  def batch_layout(self) -> str:
    return "encoder"

  def __call__(self, batch: Batch, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"hidden_states"} and, for the heads of the config, "logits", "replaced_logits", "pooled", "nsp_logits".

    In training with `predicted_share` below 1, logits are only for {"predicted"}: positions [batch, predictions].
    """
    hidden = self.hidden_states(batch, deterministic)
    outputs = {"hidden_states": hidden}
    weights = batch.get("encoder_loss_weights")
    if self.config.mlm_head:
      if self.predicted_share < 1.0 and weights is not None and not deterministic:
        outputs["predicted"], target_states = gather_targets(hidden, weights, self.predicted_share)
        outputs["logits"] = self.project(target_states)
      else:
        outputs["logits"] = self.project(hidden)
    if self.config.discriminator_head:
      outputs["replaced_logits"] = self.discriminator_head(hidden)
    if self.config.pooler:
      outputs |= self.sentence_outputs(hidden)
    return outputs

  def hidden_states(self, batch: Batch, deterministic: bool = True, all_layers: bool = False) -> jax.Array:
    """Returns [batch, length, embed], the input of `project` and `sentence_outputs`.

    With `all_layers` returns [layers + 1, batch, length, embed]: see stack.all_states.
    """
    x, context = self.embed(batch, deterministic, self.token_embedder.prompt_length)
    context = dataclasses.replace(context, return_states=all_layers)
    hidden, layers = self.encoder(x, context)
    hidden = all_states(x, hidden, layers) if all_layers else hidden
    return hidden[..., self.token_embedder.prompt_length :, :]

  def embed(
    self, batch: Batch, deterministic: bool, prompt: int = 0, projected: bool = True
  ) -> tuple[jax.Array, Context]:
    """Returns the embeddings of a batch, after `prompt` vectors of a learned prompt, and the context of the layers.

    projected: see Embedder.
    """
    tokens, positions, types = (batch.get(f"encoder_{name}") for name in ("input_tokens", "positions", "token_types"))
    valid = encoder_valid(batch, self.config.padding_id)
    tokens, positions = as_in_pretraining(self.config, tokens, positions, valid)
    segments, valid = prepend(batch.get("encoder_segment_ids"), prompt), prepend(valid, prompt)
    padding = None
    if self.config.positions == "disentangled":  # in DeBERTa, padding is embedded as 0 and attends to nothing
      segments, padding = valid.astype(jnp.int32) if segments is None else segments, valid
    mask = Mask(query_segments=segments, key_segments=segments, key_valid=valid, right_padded=True)
    x = self.token_embedder(
      tokens, positions, types, deterministic=deterministic, prompt=prompt > 0, valid=padding, projected=projected
    )
    positions = with_prompt_positions(positions, prompt)
    return x, Context(mask=mask, positions=positions, bidirectional=True, deterministic=deterministic)

  def project(self, hidden: jax.Array) -> jax.Array:
    """Returns logits for masked tokens, [..., embed] -> [..., vocab], of all positions or only the masked ones."""
    transformed, bias = self.mlm_head(hidden)
    logits = self.token_embedder.attend(transformed)
    return logits + bias.reshape((1,) * (logits.ndim - 1) + (-1,))

  def sentence_outputs(self, hidden: jax.Array) -> dict[str, jax.Array]:
    """Returns pooled [batch, embed] from the first token ([CLS]) and nsp_logits [batch, 2], class 0: B follows A."""
    pooled = nn.with_logical_constraint(jnp.tanh(self.pooler(hidden[:, 0])), ("batch", None))
    outputs = {"pooled": pooled}
    if self.config.nsp_head:
      outputs["nsp_logits"] = self.nsp_head(outputs["pooled"]).astype(jnp.dtype(self.config.logits_dtype))
    return outputs


def predictions_per_row(share: float, length: int) -> int:
  """Returns the number of positions per row whose logits are computed in training."""
  return min(length, -(-math.ceil(share * length) // 8) * 8)  # a multiple of 8, for fast matrix products


def gather_targets(hidden: jax.Array, weights: jax.Array, share: float) -> tuple[jax.Array, jax.Array]:
  """Returns positions [batch, predictions] that include all targets, and the hidden states at them."""
  positions, fits = target_positions(weights, share)
  # Positions are unique: no sum in the gradient depends on an order. Otherwise XLA would sort all its entries.
  states = jax.vmap(lambda row, at: row.at[at].get(unique_indices=True, mode="promise_in_bounds"))(hidden, positions)
  return positions, jnp.where(fits, states, jnp.asarray(jnp.nan, states.dtype))


def target_positions(weights: jax.Array, share: float) -> tuple[jax.Array, jax.Array]:
  """Returns positions [batch, predictions] that include all targets, and whether they do, [batch, 1, 1]."""
  count = predictions_per_row(share, weights.shape[1])
  _, positions = jax.lax.top_k((weights != 0).astype(jnp.float32), count)
  return positions, (jnp.sum(weights != 0, axis=1) <= count)[:, None, None]


class MLMHead(nn.Module):
  """norm(act(h W + b)), then the tied embedding and a bias per token."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the vectors to multiply with the embedding, and the bias [vocab] of the logits."""
    config = self.config
    transform = dense(config, config.embedding_width, ("embed", "mlp"), name="transform")
    rows = ("batch", "length") if hidden.ndim == 3 else ("batch",) + (None,) * (hidden.ndim - 2)
    x = nn.with_logical_constraint(ACTIVATIONS[config.activation](transform(hidden)), (*rows, "mlp"))
    x = nn.with_logical_constraint(x, (*rows, None))  # the norm needs the full width
    init = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
    bias = self.param("bias", init, (config.vocab_size,), jnp.dtype(config.param_dtype))
    return Norm(config, name="norm")(x), bias.astype(jnp.dtype(config.logits_dtype))


class ReplacedTokenHead(nn.Module):
  """w . act(h W + b) + c: above 0 for a token that was replaced (Clark et al. 2020)."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:  # [batch, length, embed] -> [batch, length]
    config = self.config
    x = dense(config, config.embed_dim, ("embed", "mlp"), name="dense")(hidden)
    x = nn.with_logical_constraint(ACTIVATIONS[config.activation](x), ("batch", "length", "mlp"))
    logits = dense(config, 1, ("mlp", None), name="out")(x)
    return logits[..., 0].astype(jnp.dtype(config.logits_dtype))
