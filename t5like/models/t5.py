"""T5: a text-to-text encoder-decoder (Raffel et al. 2019, section 2.1)."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.attention import Mask
from t5like.models.attention import Context
from t5like.models.cache import Cache, Step, last_tokens, start_cache
from t5like.models.config import TransformerConfig
from t5like.models.embedder import Embedder, LogitsDense, check_length
from t5like.models.padding import encoder_valid
from t5like.models.stack import Stack

Batch = Mapping[str, jax.Array]


class T5(nn.Module):
  """Encoder-decoder. T5 1.1, mT5, ByT5 and shared stacks are configs of it: see gin/models.

  Rows are padded on the right, as seqio and data/ lay them out: a GPU is told how many real tokens each begins with.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    config.require_layers("T5", "num_encoder_layers", "num_decoder_layers")
    self.token_embedder = Embedder(config)
    if config.share_encoder_decoder:
      self.shared = Stack(config, config.num_decoder_layers, has_cross_attention=True)
    else:
      self.encoder = Stack(config, config.num_encoder_layers)
      self.decoder = Stack(config, config.num_decoder_layers, has_cross_attention=True)
    if not config.tie_embeddings:
      self.logits_dense = LogitsDense(config)

  @property
  def batch_layout(self) -> str:
    return "encoder_decoder"

  def __call__(self, batch: Batch, deterministic: bool = True) -> dict[str, jax.Array]:
    """{"logits": [batch, decoder length, vocab]}"""
    return {"logits": self.project(self.hidden_states(batch, deterministic))}

  def hidden_states(self, batch: Batch, deterministic: bool = True) -> jax.Array:
    """The decoder's last hidden states, [batch, decoder length, embed]; `project` makes them logits."""
    tokens, segments = batch["decoder_input_tokens"], batch.get("decoder_segment_ids")
    positions = batch.get("decoder_positions")
    encoded = self.encode(batch, deterministic)
    # Right padding needs no mask here: real positions come before it and look back only.
    context = Context(
      mask=Mask(causal=True, query_segments=segments, key_segments=segments),
      positions=positions,
      encoded=encoded,
      encoded_mask=_encoded_mask(batch),
      deterministic=deterministic,
    )
    x = self.token_embedder(tokens, positions, deterministic=deterministic)
    x, _ = self._decoder(x, context)
    return x

  def encode(self, batch: Batch, deterministic: bool = True) -> jax.Array:
    """The encoder's hidden states, [batch, encoder length, embed]."""
    tokens, segments = batch["encoder_input_tokens"], batch.get("encoder_segment_ids")
    positions = batch.get("encoder_positions")
    mask = Mask(query_segments=segments, key_segments=segments, key_valid=encoder_valid(batch), right_padded=True)
    x = self.token_embedder(tokens, positions, deterministic=deterministic)
    context = Context(mask=mask, positions=positions, bidirectional=True, deterministic=deterministic)
    x, _ = self._encoder(x, context)
    return x

  def project(self, hidden: jax.Array) -> jax.Array:
    """Logits of hidden states: [..., embed] -> [..., vocab]."""
    return self.token_embedder.attend(hidden) if self.config.tie_embeddings else self.logits_dense(hidden)

  @property
  def _encoder(self) -> Stack:
    return self.shared if self.config.share_encoder_decoder else self.encoder

  @property
  def _decoder(self) -> Stack:
    return self.shared if self.config.share_encoder_decoder else self.decoder

  # Decoding: encode once, then one token a row at a time.

  def decoder_prompt(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Tokens [batch, length] that the output goes on from, and how many in each row.

    Pad stands for the start of the output; `decoder_prompt_tokens` [batch, length], where given, come after it, padded
    with 0 on the right.
    """
    start = jnp.zeros((batch["encoder_input_tokens"].shape[0], 1), jnp.int32)
    given = batch.get("decoder_prompt_tokens")
    if given is None:
      return start, jnp.ones(start.shape[:1], jnp.int32)
    return jnp.concatenate([start, given], axis=1), 1 + jnp.sum(given > 0, axis=1).astype(jnp.int32)

  def first_tokens(self, batch: Batch) -> jax.Array:
    """What the first `decode_step` is fed, [batch]: the last tokens of the prompts."""
    return last_tokens(*self.decoder_prompt(batch))

  def start_decoding(self, batch: Batch, max_decode_length: int, copies: int = 1) -> Cache:
    """Encodes, and sets up a cache for `max_decode_length` steps of `copies` outputs a row."""
    tokens, lengths = self.decoder_prompt(batch)
    check_length(self.config, tokens.shape[1])
    encoded, valid = self.encode(batch), encoder_valid(batch)
    # Reading the prompt computes every layer's cross-attention keys and values too.
    context = Context(mask=Mask(causal=True), encoded=encoded, encoded_mask=Mask(key_valid=valid), keep=True)
    _, kept = self._decoder(self.token_embedder(tokens, deterministic=True), context)
    cache = start_cache(kept, lengths, max_decode_length, copies, self.config.scan_layers)
    return cache | {"encoder_valid": valid}

  def decode_step(self, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """Feeds tokens [rows]; gives the logits [rows, vocab] of what follows, and the cache."""
    index, number = cache["index"], cache["number"]
    context = Context(mask=Mask(), positions=index[:, None], step=Step.of(cache))
    x = self.token_embedder(tokens[:, None], index[:, None], deterministic=True)
    x, layers = self._decoder(x, context, cache["layers"])
    return self.project(x[:, 0]), cache | {"index": index + 1, "number": number + 1, "layers": layers}


def _encoded_mask(batch: Batch) -> Mask:
  """Which inputs a target may look at: real ones, and in a packed row those of its own example."""
  queries, keys = batch.get("decoder_segment_ids"), batch.get("encoder_segment_ids")
  if queries is None or keys is None:
    return Mask(key_valid=encoder_valid(batch), right_padded=True)
  return Mask(query_segments=queries, key_segments=keys, key_valid=encoder_valid(batch), right_padded=True)
