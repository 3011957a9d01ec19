"""ELECTRA: a small generator fills masks, and an encoder finds the tokens that it got wrong (Clark et al. 2020)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.kernels.hashing import HASHED
from t5like.models.attention import Context
from t5like.models.auxiliary import Auxiliary
from t5like.models.bert import BERT, Batch, MLMHead, ReplacedTokenHead, gather_targets
from t5like.models.config import TransformerConfig
from t5like.models.embedder import Embedder
from t5like.models.layers import constrain_activations, dense
from t5like.models.padding import encoder_valid
from t5like.models.stack import Stack

SHARING = ("tied", "disentangled")
BINS = 200  # of the discriminator's probabilities; the original computes its AUC from 200 thresholds, too
LOSS = "discriminator_loss"


class ELECTRA(BERT):
  """Generator and discriminator in one model, trained together by replaced-token detection.

  The discriminator is the encoder that is kept: its parameters are those of a BERT without heads, so a run with a head
  starts from them with INIT_FROM. The generator has its own narrower layers under `generator/` and reads the same
  embeddings. `config` is the discriminator's; its `mlm_head` is the generator's.

  In a step, the generator predicts the masked tokens; one token is sampled for each of them from its softmax; the
  discriminator reads the text with these samples and decides for every token whether it is the original one. No
  gradient passes through the samples. Their noise is drawn from the random key "sample", which the train step derives
  from seed and step; without one, as in evaluation, it is always the same.

  generator_share       width of the generator, its MLP and its heads, relative to the discriminator (small, large: 1/4;
                        base: 1/3)
  discriminator_weight  of the discriminator's loss; the generator's has weight 1
  embedding_sharing     "tied": both models train one set of embeddings. "disentangled", as in DeBERTa v3 (He et al.
                        2021, section 3.3): the generator trains them, and the discriminator reads them plus a
                        difference of its own, which starts at 0; the two losses pull embeddings in opposite directions
  """

  family: str = "electra"
  generator_share: float = 0.25
  discriminator_weight: float = 50.0
  embedding_sharing: str = "tied"

  def setup(self):
    config = self.config
    config.require_layers("ELECTRA", "num_encoder_layers")
    self.check()
    self.token_embedder = Embedder(config)
    self.encoder = Stack(config, config.num_encoder_layers)
    if config.mlm_head:
      self.generator = Generator(self.generator_config, config)
      self.discriminator_head = ReplacedTokenHead(config)
      if self.embedding_sharing == "disentangled":
        self.embedding_delta = EmbeddingDelta()

  def check(self) -> None:
    """Raises UserError for settings that do not fit, before anything is compiled."""
    for field, most in (("predicted_share", 1.0), ("generator_share", 1.0), ("discriminator_weight", 1e9)):
      if not 0.0 < getattr(self, field) <= most:
        raise UserError(f"invalid ELECTRA.{field}: {getattr(self, field)!r}", expected=f"0 < {field} <= {most:g}")
    if self.embedding_sharing not in SHARING:
      raise UserError(f"invalid ELECTRA.embedding_sharing: {self.embedding_sharing!r}", known=", ".join(SHARING))
    if self.config.pooler or self.config.nsp_head:
      raise UserError(
        "ELECTRA has no pooler and no next-sentence prediction",
        try_="--gin.TransformerConfig.pooler=False --gin.TransformerConfig.nsp_head=False",
      )

  @property
  def generator_config(self) -> TransformerConfig:
    """The generator's layers: as deep as the discriminator's, with heads of the same size."""
    config = self.config
    width = max(round(config.embed_dim * self.generator_share), 1)
    heads = max(round(config.num_heads * self.generator_share), 1)
    return dataclasses.replace(
      config,
      embed_dim=width,
      mlp_dim=max(round(config.mlp_dim * self.generator_share), 1),
      num_heads=heads,
      embedding_dim=None,
      head_dim=min(config.head_dim, max(width // heads, 1)),
    )

  @property
  def random_purposes(self) -> tuple[str, ...]:
    """Random keys that the train step derives for this model, in addition to dropout's."""
    return ("sample",)

  def __call__(self, batch: Batch, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns the generator's "logits" (at "predicted" positions, see BERT), and of the discriminator "hidden_states",
    "replaced_logits" [batch, length], what they should find ("replaced"), and its loss ("auxiliary").

    A batch without targets, such as text to embed, is read by the discriminator as it is.
    """
    if not self.config.mlm_head:
      return {"hidden_states": self.hidden_states(batch, deterministic)}
    states, weights = self.generator_states(batch, deterministic), batch.get("encoder_loss_weights")
    if weights is None:
      hidden = self.hidden_states(batch, deterministic)
      return {
        "logits": self.project(states),
        "hidden_states": hidden,
        "replaced_logits": self.discriminator_head(hidden),
      }
    outputs, positions = {}, jnp.broadcast_to(jnp.arange(weights.shape[1])[None], weights.shape)
    if self.predicted_share < 1.0 and not deterministic:
      positions, states = gather_targets(states, weights, self.predicted_share)
      outputs["predicted"] = positions
    outputs["logits"] = self.project(states)
    key = self.make_rng("sample") if self.has_rng("sample") else jax.random.key(0, impl=HASHED)
    original, corrupted = corrupt(batch, outputs["logits"], positions, key)
    hidden = self.hidden_states({**batch, "encoder_input_tokens": corrupted}, deterministic)
    logits, replaced = self.discriminator_head(hidden), corrupted != original
    outputs |= {"hidden_states": hidden, "replaced_logits": logits, "replaced": replaced}
    real = real_tokens(batch, self.config.padding_id)
    outputs["auxiliary"] = {LOSS: Auxiliary(detection_loss(logits, replaced), real, self.discriminator_weight)}
    outputs["replaced_counts"] = count_by_probability(logits, replaced, real)
    return outputs

  def auxiliary_counts(self, batch: Batch) -> dict[str, jax.Array]:
    """Returns the divisor of the discriminator's loss: the real tokens of the global batch."""
    return {LOSS: jnp.sum(real_tokens(batch, self.config.padding_id))}

  def hidden_states(self, batch: Batch, deterministic: bool = True, all_layers: bool = False) -> jax.Array:
    """Returns the discriminator's states: see BERT."""
    if self.embedding_sharing == "tied" or not self.config.mlm_head:
      return super().hidden_states(batch, deterministic, all_layers)
    tables = self.embedding_delta(nn.unbox(self.token_embedder.variables["params"]))
    if self.is_initializing():  # not all parameters exist, and the difference is 0
      return super().hidden_states(batch, deterministic, all_layers)

    def with_delta(variables):
      params = nn.unbox(variables)["params"]
      return {"params": {**params, "token_embedder": {**params["token_embedder"], **tables}}}

    read = lambda model: BERT.hidden_states(model, batch, deterministic, all_layers)  # noqa: E731
    return nn.map_variables(read, "params", trans_in_fn=with_delta)(self)

  def generator_states(self, batch: Batch, deterministic: bool = True) -> jax.Array:
    """Returns the states [batch, length, generator's width] that `project` reads."""
    return self.generator(*self.embed(batch, deterministic, projected=False))

  @nn.nowrap
  def discriminator(self, params: Mapping[str, Any]) -> tuple[BERT, dict[str, Any]]:
    """Returns the encoder that is kept, with its head, and its parameters."""
    config = dataclasses.replace(self.config, mlm_head=False, discriminator_head=True)
    kept = {name: part for name, part in params.items() if name not in ("generator", "embedding_delta")}
    for name, difference in params.get("embedding_delta", {}).items():
      kept["token_embedder"] = {**kept["token_embedder"], name: kept["token_embedder"][name] + difference}
    return BERT(config, family="electra"), kept

  def project(self, states: jax.Array) -> jax.Array:
    """Returns the generator's logits: [..., its width] -> [..., vocab]."""
    transformed, bias = self.generator.transform(states)
    logits = self.token_embedder.attend(transformed)
    return logits + bias.reshape((1,) * (logits.ndim - 1) + (-1,))


class Generator(nn.Module):
  """The generator's layers, between embeddings that it shares with the discriminator."""

  config: TransformerConfig
  shared: TransformerConfig  # the discriminator's: that of the embeddings

  def setup(self):
    self.embedding_projection = dense(self.config, self.config.embed_dim, (None, "embed"))
    self.encoder = Stack(self.config, self.config.num_encoder_layers)
    self.mlm_head = MLMHead(self.shared)

  def __call__(self, embedded: jax.Array, context: Context) -> jax.Array:
    return self.encoder(constrain_activations(self.embedding_projection(embedded)), context)[0]

  def transform(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the vectors to multiply with the embedding, and the bias of the logits."""
    return self.mlm_head(states)


class EmbeddingDelta(nn.Module):
  """The difference of the discriminator's tables from the generator's."""

  @nn.compact
  def __call__(self, tables: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the discriminator's tables, which pass no gradient on to the generator's; norms stay shared."""
    found = {}
    for name, table in tables.items():
      if name.endswith("embedding"):
        axes = ("vocab" if name == "embedding" else None, "embed")
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, axes)
        found[name] = jax.lax.stop_gradient(table) + self.param(name, zeros, table.shape, table.dtype)
    return found


def real_tokens(batch: Batch, padding_id: int) -> jax.Array:
  """Returns [batch, length] float32: 1 on tokens that the discriminator's loss counts, 0 on padding and filler rows.

  A filler row of an evaluation is a copy of another one in which nothing is predicted.
  """
  counted = jnp.any(batch["encoder_loss_weights"] != 0, axis=1, keepdims=True)
  return (encoder_valid(batch, padding_id) & counted).astype(jnp.float32)


def corrupt(
  batch: Mapping[str, jax.Array], logits: jax.Array, positions: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the original tokens [batch, length], and the same with samples of `logits` in place of the targets.

  logits     [batch, predictions, vocab]
  positions  [batch, predictions], which include all targets
  """
  chosen = batch["encoder_loss_weights"] != 0
  original = jnp.where(chosen, batch["encoder_target_tokens"], batch["encoder_input_tokens"])
  noise = jax.random.gumbel(key, logits.shape, jnp.float32)
  # The maximum of logits with Gumbel noise is a sample of their softmax.
  sampled = jnp.argmax(jax.lax.stop_gradient(logits).astype(jnp.float32) + noise, axis=-1).astype(original.dtype)
  at = lambda x: jnp.take_along_axis(x, positions, axis=1)  # noqa: E731
  rows = jnp.arange(original.shape[0])[:, None]
  return original, original.at[rows, positions].set(jnp.where(at(chosen), sampled, at(original)))


def detection_loss(logits: jax.Array, replaced: jax.Array) -> jax.Array:
  """Returns the binary cross entropy of each token [batch, length], in float32."""
  logits = logits.astype(jnp.float32)
  return jnp.logaddexp(0.0, jnp.where(replaced, -logits, logits))


def count_by_probability(logits: jax.Array, replaced: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns the number of tokens [2, bins] that are original (0) or replaced (1), by predicted probability.

  Counts add up over batches; precision, recall and AUC follow from them (training/detection.py).
  """
  probability = jax.nn.sigmoid(jax.lax.stop_gradient(logits).astype(jnp.float32))
  number = jnp.clip((probability * BINS).astype(jnp.int32), 0, BINS - 1) + jnp.where(replaced, BINS, 0)
  return jnp.zeros(2 * BINS, jnp.float32).at[number.reshape(-1)].add(weights.reshape(-1)).reshape(2, BINS)
