"""T5: a text-to-text encoder-decoder (Raffel et al. 2019, section 2.1)."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t5like.kernels.attention import Mask
from t5like.models.attention import Context
from t5like.models.cache import Cache, DecodingStep, last_tokens, start_cache
from t5like.models.config import TransformerConfig
from t5like.models.embedder import Embedder, LogitsBias, LogitsDense, check_length, with_prompt_positions
from t5like.models.modifications.experts import auxiliary_counts, outputs
from t5like.models.modifications.outputs import AdaptiveSoftmax, MixtureOfSoftmaxes
from t5like.models.padding import encoder_valid, prepend
from t5like.models.stack import Stack, all_states, of_layers
from t5like.models.tuning import Tunable

Batch = Mapping[str, jax.Array]


class T5(Tunable):
  """Encoder-decoder model. T5 1.1, mT5, ByT5, BART, mBART and shared stacks are configurations of it: see gin/models.

  Rows must be padded on the right, as seqio and data/ do: fused attention on GPUs only receives their lengths.
  """

  config: TransformerConfig

  def setup(self):
    config = self.config
    config.require_layers("T5", "num_encoder_layers", "num_decoder_layers")
    self.token_embedder = Embedder(config)
    if not config.tie_inputs:
      self.decoder_embedder = Embedder(config)
    if config.share_encoder_decoder:
      self.shared = Stack(config, config.num_decoder_layers, has_cross_attention=True)
    else:
      self.encoder = Stack(config, config.num_encoder_layers)
      self.decoder = Stack(config, config.num_decoder_layers, has_cross_attention=True)
    if not config.tie_embeddings:
      self.logits_dense = AdaptiveSoftmax(config) if config.softmax_clusters else LogitsDense(config)
    if config.softmax_mixtures:
      self.logits_mixture = MixtureOfSoftmaxes(config)
    if config.logits_bias:
      self.logits_bias = LogitsBias(config)

  @property
  def batch_layout(self) -> str:
    return "encoder_decoder"

  def __call__(self, batch: Batch, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"logits": [batch, decoder length, vocab]}; in training, the losses of experts, too."""
    return outputs(self, batch, deterministic)

  def auxiliary_counts(self, batch: Batch) -> dict[str, jax.Array]:
    """Returns the divisors of the losses in outputs["auxiliary"]."""
    return auxiliary_counts(self.config, batch)

  def hidden_states(
    self, batch: Batch, deterministic: bool = True, all_layers: bool = False, routing: list | None = None
  ) -> jax.Array:
    """Returns the decoder's last hidden states [batch, decoder length, embed], the input of `project`.

    With `all_layers` returns [layers + 1, batch, decoder length, embed]: see stack.all_states. `routing`, a list,
    receives the losses of the stacks' experts.
    """
    tokens, segments = batch["decoder_input_tokens"], batch.get("decoder_segment_ids")
    positions = batch.get("decoder_positions")
    encoded = self.encode(batch, deterministic, **self._whole, **({} if routing is None else {"routing": routing}))
    # Right padding needs no mask here: tokens precede it and attention is causal.
    context = Context(
      mask=Mask(causal=True, query_segments=segments, key_segments=segments),
      positions=positions,
      encoded=encoded,
      encoded_mask=self._encoded_mask(batch),
      deterministic=deterministic,
      return_states=all_layers,
      return_routing=routing is not None,
    )
    x = self._decoder_embedder(tokens, positions, deterministic=deterministic, decoder=True)
    hidden, layers = self._decoder(x, context)
    if routing is not None:
      routing.append(of_layers(layers, "routing"))
    return all_states(x, hidden, layers) if all_layers else hidden

  def encode(
    self, batch: Batch, deterministic: bool = True, all_layers: bool = False, with_prompt: bool = False,
    routing: list | None = None,
  ) -> jax.Array:  # fmt: skip
    """Returns the encoder's hidden states, [batch, encoder length, embed]; others as in `hidden_states`.

    With `with_prompt`, also those of a learned prompt, before the others.
    """
    positions, prompt = batch.get("encoder_positions"), self.token_embedder.prompt_length
    segments, valid = prepend(batch.get("encoder_segment_ids"), prompt), self._encoder_valid(batch)
    mask = Mask(query_segments=segments, key_segments=segments, key_valid=valid, right_padded=True)
    x = self.token_embedder(batch["encoder_input_tokens"], positions, deterministic=deterministic, prompt=True)
    context = Context(
      mask=mask, positions=with_prompt_positions(positions, prompt), bidirectional=True, deterministic=deterministic,
      return_states=all_layers, return_routing=routing is not None,
    )  # fmt: skip
    hidden, layers = self._encoder(x, context)
    if routing is not None:
      routing.append(of_layers(layers, "routing"))
    hidden = all_states(x, hidden, layers) if all_layers else hidden
    return hidden if with_prompt else hidden[..., prompt:, :]

  @property
  def _whole(self) -> dict[str, bool]:
    """Asks `encode` for the states of a learned prompt, too, if there is one; subclasses need not know of prompts."""
    return {"with_prompt": True} if self.token_embedder.prompt_length else {}

  def project(self, hidden: jax.Array, padding: int = 0) -> jax.Array:
    """Returns logits of hidden states: [..., embed] -> [..., vocab + padding]; see `logits_padding`."""
    tied = functools.partial(self._decoder_embedder.attend, padding=padding)
    logits = tied if self.config.tie_embeddings else self.logits_dense
    logits = self.logits_mixture(hidden, logits) if self.config.softmax_mixtures else logits(hidden)
    return self.logits_bias(logits) if self.config.logits_bias else logits

  @property
  def _decoder_embedder(self) -> Embedder:
    return self.token_embedder if self.config.tie_inputs else self.decoder_embedder

  @property
  def _encoder(self) -> Stack:
    return self.shared if self.config.share_encoder_decoder else self.encoder

  @property
  def _decoder(self) -> Stack:
    return self.shared if self.config.share_encoder_decoder else self.decoder

  # Decoding: encode once, then one token per row and step.

  def decoder_prompt(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns the decoder's prompts [batch, length] and their lengths [batch].

    The start token (T5: padding) is followed by `decoder_prompt_tokens` [batch, length], if present, padded with 0 on
    the right.
    """
    start = jnp.full((batch["encoder_input_tokens"].shape[0], 1), self.config.start_id or 0, jnp.int32)
    given = batch.get("decoder_prompt_tokens")
    if given is None:
      return start, jnp.ones(start.shape[:1], jnp.int32)
    return jnp.concatenate([start, given], axis=1), 1 + jnp.sum(given > 0, axis=1).astype(jnp.int32)

  def first_tokens(self, batch: Batch) -> jax.Array:
    """Returns the input [batch] of the first `decode_step`: the last token of each prompt."""
    return last_tokens(*self.decoder_prompt(batch))

  def start_decoding(self, batch: Batch, max_decode_length: int, hypotheses: int = 1) -> Cache:
    """Encodes the inputs and builds a cache for `max_decode_length` steps of `hypotheses` outputs per row."""
    tokens, lengths = self.decoder_prompt(batch)
    check_length(self.config, tokens.shape[1])
    encoded = self.encode(batch, **self._whole)
    valid = self._encoder_valid(batch)
    # The pass over the prompts also computes every layer's cross-attention keys and values.
    context = Context(mask=Mask(causal=True), encoded=encoded, encoded_mask=Mask(key_valid=valid), return_kv=True)
    _, keys_values = self._decoder(self._decoder_embedder(tokens, deterministic=True, decoder=True), context)
    cache = start_cache(keys_values, lengths, max_decode_length, hypotheses, self.config.scan_layers)
    return cache | {"encoder_valid": valid}

  def decode_step(self, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """Feeds tokens [rows]; returns the logits [rows, vocab] of the next tokens and the updated cache."""
    index, length = cache["index"], cache["generated_length"]
    context = Context(mask=Mask(), positions=index[:, None], step=DecodingStep.from_cache(cache))
    x = self._decoder_embedder(tokens[:, None], index[:, None], deterministic=True, decoder=True)
    x, layers = self._decoder(x, context, cache["layers"])
    return self.project(x[:, 0]), cache | {"index": index + 1, "generated_length": length + 1, "layers": layers}

  def _encoder_valid(self, batch: Batch) -> jax.Array:
    """Returns [batch, encoder length], True on tokens and on a learned prompt before them."""
    return prepend(encoder_valid(batch, self.config.padding_id), self.token_embedder.prompt_length)

  def _encoded_mask(self, batch: Batch) -> Mask:
    """Returns the cross-attention mask: hides padding and, in packed rows, the inputs of other examples."""
    prompt, valid = self.token_embedder.prompt_length, self._encoder_valid(batch)
    queries, keys = batch.get("decoder_segment_ids"), prepend(batch.get("encoder_segment_ids"), prompt)
    if queries is None or keys is None:
      return Mask(key_valid=valid, right_padded=True)
    return Mask(query_segments=queries, key_segments=keys, key_valid=valid, right_padded=True)
