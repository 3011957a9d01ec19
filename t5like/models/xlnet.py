"""XLNet: predicts tokens in a random order, each from those before it in that order (Yang et al. 2019)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.kernels.attention import Mask
from t5like.models.attention import Context, QueryStream
from t5like.models.bert import BERT, Batch, target_positions
from t5like.models.embedder import Embedder, LogitsBias
from t5like.models.layers import constrain_activations, embedding_init
from t5like.models.padding import as_in_pretraining, encoder_valid, prepend
from t5like.models.stack import Stack, all_states

_PADDING_TYPE = 3  # Hugging Face's: padding is in a segment of its own


class XLNet(BERT):
  """An encoder with relative positions, segments and memory, and a second stream of states for pre-training.

  In pre-training, `encoder_order` [batch, length] of a batch is the order of prediction: the content of a token reads
  tokens of its own order and of lower ones, its prediction only those of lower ones. Without it, all predicted tokens
  follow all others: a masked language model. The inputs are the original tokens. A batch without `encoder_loss_weights`
  and a head read one stream, in both directions.

  memory_length   in pre-training, the first tokens of every row are an earlier segment: their states, without gradient,
                  are the memory of the others, which are predicted. So a batch stays a function of seed and step.
  predicted_share, family  see BERT; the share is of the tokens after the memory
  """

  family: str = "xlnet"
  memory_length: int = 0

  def setup(self):
    config = self.config
    config.require_layers("XLNet", "num_encoder_layers")
    self.check()
    self.token_embedder = Embedder(config)
    self.encoder = Stack(config, config.num_encoder_layers)
    init = nn.with_logical_partitioning(embedding_init(config), (None, "embed"))
    self.mask_embedding = self.param("mask_embedding", init, (1, config.embed_dim), jnp.dtype(config.param_dtype))
    if config.mlm_head:
      self.mlm_head = LogitsBias(config, trains=True)

  def check(self) -> None:
    """Raises UserError for settings that do not fit, before anything is compiled."""
    if not 0.0 < self.predicted_share <= 1.0:
      raise UserError(f"invalid XLNet.predicted_share: {self.predicted_share!r}", expected="0 < share <= 1")
    if self.memory_length < 0:
      raise UserError(f"invalid XLNet.memory_length: {self.memory_length!r}", expected="0 or more")
    needed = dict(positions="transformer_xl", norm_position="post", pooler=False, nsp_head=False, num_token_types=0)
    needed |= dict(discriminator_head=False, embedding_dim=None)
    for field, value in needed.items():
      if getattr(self.config, field) != value:
        raise UserError(
          f"invalid TransformerConfig.{field} for XLNet: {getattr(self.config, field)!r}",
          expected=repr(value),
          try_="a file of models/xlnet",
        )

  def __call__(self, batch: Batch, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"hidden_states"} of the content and, with the head of the config, "logits".

    Of a batch with targets, logits are those of the query stream: for {"predicted"}, positions [batch, predictions],
    in training with `predicted_share` below 1, and after a memory.
    """
    weights = batch.get("encoder_loss_weights")
    if not self.config.mlm_head or weights is None:
      hidden = self.hidden_states(batch, deterministic)
      return {"hidden_states": hidden} | ({"logits": self.project(hidden)} if self.config.mlm_head else {})
    first = self.memory_length
    if weights.shape[1] <= first:
      raise UserError(
        f"rows of {weights.shape[1]} tokens have no more than the memory of {first}",
        try_="a larger LENGTHS['inputs'], or a smaller MEMORY_LENGTH",
      )
    memory = None
    if first:
      states = self.hidden_states(_part(batch, slice(0, first)), deterministic, all_layers=True)
      # Without the barrier, XLA would compute the states of the memory again wherever they are read.
      memory = jax.lax.optimization_barrier(jax.lax.stop_gradient(states[:-1]))
      batch = _part(batch, slice(first, None))
      weights = batch["encoder_loss_weights"]
    positions, fits = None, True
    if self.predicted_share < 1.0 and not deterministic:
      positions, fits = target_positions(weights, self.predicted_share)
    content, predicting = self.two_streams(batch, deterministic, memory, positions)
    # A row with more targets makes the loss NaN: see BERT.
    predicting = jnp.where(fits, predicting, jnp.asarray(jnp.nan, predicting.dtype))
    outputs = {"hidden_states": content, "logits": self.project(predicting)}
    if positions is None and first:
      positions = jnp.broadcast_to(jnp.arange(weights.shape[1])[None], weights.shape)
    return outputs if positions is None else outputs | {"predicted": positions + first}

  def hidden_states(
    self, batch: Batch, deterministic: bool = True, all_layers: bool = False, memory: jax.Array | None = None
  ) -> jax.Array:
    """Returns the content's states [batch, length, embed], or those of all layers: see BERT.

    memory  [layers, batch, earlier tokens, embed]: the inputs of all layers for an earlier segment, which are those of
            `all_layers` without the last (Hugging Face's `mems`)
    """
    prompt = self.token_embedder.prompt_length
    x, context = self.embed(batch, deterministic, prompt, memory=0 if memory is None else memory.shape[2])
    context = dataclasses.replace(context, return_states=all_layers)
    hidden, layers = self.encoder(x, context, self._cache(memory))
    hidden = all_states(x, hidden, layers) if all_layers else hidden
    return hidden[..., prompt:, :]

  def query_states(self, batch: Batch) -> jax.Array:
    """Returns the states [batch, length, embed] that `project` reads to predict the tokens with a loss weight."""
    return self.two_streams(batch, deterministic=True)[1]

  def two_streams(
    self, batch: Batch, deterministic: bool, memory: jax.Array | None = None, positions: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the states of the content [batch, length, embed] and of the query stream [batch, predictions, embed].

    positions  [batch, predictions] of the query stream; None: all
    """
    earlier = 0 if memory is None else memory.shape[2]
    x, context = self.embed(batch, deterministic, memory=earlier)
    order = batch.get("encoder_order")
    order = (batch["encoder_loss_weights"] != 0).astype(jnp.int32) if order is None else order
    mask = dataclasses.replace(context.mask, query_order=order, key_order=prepend(order, earlier, -1))
    length = x.shape[1]
    targets = None if positions is None else jax.nn.one_hot(positions, length, dtype=x.dtype)
    asking = dataclasses.replace(mask, query_order=order - 1, own=False)
    shape = (x.shape[0], length if positions is None else positions.shape[1], x.shape[2])
    queries = jnp.broadcast_to(self.mask_embedding.astype(x.dtype)[None], shape)
    queries = self.token_embedder.dropout(queries, deterministic)
    x = constrain_activations(jnp.concatenate([x, queries], axis=1))
    context = dataclasses.replace(context, mask=mask, query_stream=QueryStream(asking, targets))
    hidden, _ = self.encoder(x, context, self._cache(memory))
    return hidden[:, :length], hidden[:, length:]

  def embed(
    self, batch: Batch, deterministic: bool, prompt: int = 0, projected: bool = True, memory: int = 0
  ) -> tuple[jax.Array, Context]:
    """Returns the embeddings of a batch, after a learned prompt, and the context of the layers, whose keys include
    `memory` earlier tokens. `projected` is BERT's."""
    valid, types = encoder_valid(batch, self.config.padding_id), batch.get("encoder_token_types")
    tokens, _ = as_in_pretraining(self.config, batch["encoder_input_tokens"], None, valid)
    x = self.token_embedder(tokens, deterministic=deterministic, prompt=prompt > 0)
    if types is not None:
      types = prepend(jnp.where(valid, types, _PADDING_TYPE), prompt + memory, 0)
    segments = prepend(batch.get("encoder_segment_ids"), prompt)
    mask = Mask(
      query_segments=segments,
      key_segments=prepend(segments, memory),
      key_valid=prepend(valid, prompt + memory),
      own=True,
    )
    return x, Context(mask=mask, types=types, bidirectional=True, deterministic=deterministic)

  def project(self, hidden: jax.Array) -> jax.Array:
    """Returns logits, [..., embed] -> [..., vocab]."""
    return self.mlm_head(self.token_embedder.attend(hidden))

  @nn.nowrap
  def _cache(self, memory: jax.Array | None) -> tuple | dict | None:
    """Returns the memory by layer, as a stack reads it."""
    if memory is None:
      return None
    return {"memory": memory} if self.config.scan_layers else tuple({"memory": layer} for layer in memory)


def _part(batch: Batch, tokens: slice) -> Batch:
  """Returns a batch with some of the tokens of every row."""
  return {name: x[:, tokens] for name, x in batch.items() if name.startswith("encoder_") and x.ndim == 2}
