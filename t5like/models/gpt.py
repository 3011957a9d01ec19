"""GPT: decoder-only language models (Radford et al. 2018, 2019), T5's LM and prefix LM (table 2), Llama and others."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t5like.errors import UserError, nearest
from t5like.kernels.attention import Mask
from t5like.models.attention import Context
from t5like.models.cache import Cache, DecodingStep, last_tokens, start_cache
from t5like.models.config import TransformerConfig
from t5like.models.embedder import Embedder, LogitsDense, check_length, with_prompt_positions
from t5like.models.modifications.experts import auxiliary_counts, outputs
from t5like.models.modifications.outputs import AdaptiveSoftmax, MixtureOfSoftmaxes
from t5like.models.padding import prepend
from t5like.models.stack import Stack, all_states, of_layers
from t5like.models.tuning import Tunable

Batch = Mapping[str, jax.Array]
FAMILIES = ("gpt2", "opt", "bloom", "llama", "mistral", "olmo2")  # gpt2: also GPT-1


class GPT(Tunable):
  """Decoder-only model. With `prefix_lm`, attention within the inputs is bidirectional.

  family  the published models whose Hugging Face classes it has, by their model_type
  """

  config: TransformerConfig
  family: str = "gpt2"

  def setup(self):
    config = self.config
    config.require_layers("GPT", "num_decoder_layers")
    if self.family not in FAMILIES:
      raise UserError(
        f"invalid GPT.family: {self.family!r}", nearest=nearest(self.family, FAMILIES), known=", ".join(FAMILIES)
      )
    self.token_embedder = Embedder(config)
    self.decoder = Stack(config, config.num_decoder_layers)
    if not config.tie_embeddings:
      self.logits_dense = AdaptiveSoftmax(config) if config.softmax_clusters else LogitsDense(config)
    if config.softmax_mixtures:
      self.logits_mixture = MixtureOfSoftmaxes(config)

  @property
  def batch_layout(self) -> str:
    return "prefix_lm" if self.config.prefix_lm else "decoder"

  def __call__(self, batch: Batch, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"logits": [batch, length, vocab]}; in training, the losses of experts, too."""
    return outputs(self, batch, deterministic)

  def auxiliary_counts(self, batch: Batch) -> dict[str, jax.Array]:
    """Returns the divisors of the losses in outputs["auxiliary"]."""
    return auxiliary_counts(self.config, batch)

  def hidden_states(
    self, batch: Batch, deterministic: bool = True, all_layers: bool = False, routing: list | None = None
  ) -> jax.Array:
    """Returns the last hidden states [batch, length, embed], the input of `project`.

    With `all_layers` returns [layers + 1, batch, length, embed]: see stack.all_states. `routing`, a list, receives the
    losses of the experts.
    """
    prompt = self.token_embedder.prompt_length
    segments = prepend(batch.get("decoder_segment_ids"), prompt)
    prefix = prepend(batch.get("decoder_causal_attention"), prompt) if self.config.prefix_lm else None
    # Right padding needs no mask: tokens precede it and attention is causal.
    mask = Mask(causal=True, prefix=prefix, query_segments=segments, key_segments=segments)
    positions = batch.get("decoder_positions")
    context = Context(
      mask=mask, positions=with_prompt_positions(positions, prompt), bidirectional=self.config.prefix_lm,
      deterministic=deterministic, return_states=all_layers, return_routing=routing is not None,
    )  # fmt: skip
    x = self.token_embedder(batch["decoder_input_tokens"], positions, deterministic=deterministic, prompt=True)
    hidden, layers = self.decoder(x, context)
    if routing is not None:
      routing.append(of_layers(layers, "routing"))
    hidden = all_states(x, hidden, layers) if all_layers else hidden
    return hidden[..., prompt:, :]

  def project(self, hidden: jax.Array, padding: int = 0) -> jax.Array:
    """Returns logits of hidden states: [..., embed] -> [..., vocab + padding]; see `logits_padding`."""
    tied = functools.partial(self.token_embedder.attend, padding=padding)
    logits = tied if self.config.tie_embeddings else self.logits_dense
    return self.logits_mixture(hidden, logits) if self.config.softmax_mixtures else logits(hidden)

  def _decode(self, tokens: jax.Array, cache: tuple | dict | None = None, **context):
    """Returns hidden states of tokens [batch, length] and the updated cache; `context` are fields of Context."""
    context = Context(bidirectional=self.config.prefix_lm, **context)
    x = self.token_embedder(tokens, context.positions, deterministic=context.deterministic, prompt=context.step is None)
    return self.decoder(x, context, cache)

  # Decoding: one pass over the prompts, then one token per row and step.

  def decoder_prompt(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns the prompts [batch, length], padded on the right, and their lengths [batch]."""
    return batch["decoder_input_tokens"], prompt_lengths(batch)

  def first_tokens(self, batch: Batch) -> jax.Array:
    """Returns the input [batch] of the first `decode_step`: the last token of each prompt."""
    return last_tokens(*self.decoder_prompt(batch))

  def start_decoding(self, batch: Batch, max_decode_length: int, hypotheses: int = 1) -> Cache:
    """Reads the prompts into a cache for `max_decode_length` steps of `hypotheses` outputs per row.

    The first step is fed the last token of each prompt (`first_tokens`).
    """
    prompts, lengths = self.decoder_prompt(batch)
    learned = self.token_embedder.prompt_length
    lengths, width = lengths + learned, prompts.shape[1] + learned
    check_length(self.config, width)
    real = jnp.arange(width)[None, :] < lengths[:, None]
    # Padding after a prompt is hidden by causality, or by `prefix` in a prefix LM.
    mask = Mask(causal=True, prefix=real if self.config.prefix_lm else None)
    _, keys_values = self._decode(prompts, mask=mask, return_kv=True)
    return start_cache(keys_values, lengths, max_decode_length, hypotheses, self.config.scan_layers)

  def decode_step(self, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """Feeds tokens [rows]; returns the logits [rows, vocab] of the next tokens and the updated cache."""
    index, length = cache["index"], cache["generated_length"]
    step = {"mask": Mask(), "positions": index[:, None], "step": DecodingStep.from_cache(cache)}
    x, layers = self._decode(tokens[:, None], cache["layers"], **step)
    return self.project(x[:, 0]), cache | {"index": index + 1, "generated_length": length + 1, "layers": layers}


def prompt_lengths(batch: Batch) -> jax.Array:
  """Returns the length of each prompt, [batch], from segment ids or the prefix mask; full rows without either.

  At least 1: a filler row counts as one padding token.
  """
  for feature in ("decoder_segment_ids", "decoder_causal_attention"):
    if feature in batch:
      return jnp.maximum(jnp.sum(batch[feature] > 0, axis=1).astype(jnp.int32), 1)
  rows, length = batch["decoder_input_tokens"].shape
  return jnp.full((rows,), length, jnp.int32)
