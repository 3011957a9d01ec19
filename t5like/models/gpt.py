"""GPT: decoder-only language models (Radford et al. 2018, 2019), and T5's LM and prefix LM (table 2)."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.attention import Mask
from t5like.models.attention import Context
from t5like.models.cache import Cache, Step, last_tokens, start_cache
from t5like.models.config import TransformerConfig
from t5like.models.embedder import Embedder, LogitsDense, check_length
from t5like.models.stack import Stack

Batch = Mapping[str, jax.Array]


class GPT(nn.Module):
  """Decoder-only. With `prefix_lm`, inputs see one another in both directions."""

  config: TransformerConfig

  def setup(self):
    config = self.config
    config.require_layers("GPT", "num_decoder_layers")
    self.token_embedder = Embedder(config)
    self.decoder = Stack(config, config.num_decoder_layers)
    if not config.tie_embeddings:
      self.logits_dense = LogitsDense(config)

  @property
  def batch_layout(self) -> str:
    return "prefix_lm" if self.config.prefix_lm else "decoder"

  def __call__(self, batch: Batch, deterministic: bool = True) -> dict[str, jax.Array]:
    """{"logits": [batch, length, vocab]}"""
    return {"logits": self.project(self.hidden_states(batch, deterministic))}

  def hidden_states(self, batch: Batch, deterministic: bool = True) -> jax.Array:
    """[batch, length, embed]; `project` makes them logits."""
    segments = batch.get("decoder_segment_ids")
    prefix = batch.get("decoder_causal_attention") if self.config.prefix_lm else None
    # Right padding needs no mask: real positions come before it and look back only.
    mask = Mask(causal=True, prefix=prefix, query_segments=segments, key_segments=segments)
    x, _ = self._decode(
      batch["decoder_input_tokens"], mask=mask, positions=batch.get("decoder_positions"), deterministic=deterministic
    )
    return x

  def project(self, hidden: jax.Array) -> jax.Array:
    """Logits of hidden states: [..., embed] -> [..., vocab]."""
    return self.token_embedder.attend(hidden) if self.config.tie_embeddings else self.logits_dense(hidden)

  def _decode(self, tokens: jax.Array, cache: tuple | dict | None = None, **context):
    """Hidden states of tokens [batch, length], and the cache to keep; `context` names fields of Context."""
    context = Context(bidirectional=self.config.prefix_lm, **context)
    x = self.token_embedder(tokens, context.positions, deterministic=context.deterministic)
    return self.decoder(x, context, cache)

  # Decoding: read the prompts at once, then one token a row at a time.

  def decoder_prompt(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Tokens [batch, length] that the output goes on from, padded on the right, and how many in each row."""
    return batch["decoder_input_tokens"], prompt_lengths(batch)

  def first_tokens(self, batch: Batch) -> jax.Array:
    """What the first `decode_step` is fed, [batch]: the last tokens of the prompts."""
    return last_tokens(*self.decoder_prompt(batch))

  def start_decoding(self, batch: Batch, max_decode_length: int, copies: int = 1) -> Cache:
    """Reads prompts [batch, length], padded on the right, and leaves room for `max_decode_length` steps of
    `copies` outputs each. The first step is fed each prompt's last token again (`first_tokens`)."""
    prompts, lengths = self.decoder_prompt(batch)
    check_length(self.config, prompts.shape[1])
    real = jnp.arange(prompts.shape[1])[None, :] < lengths[:, None]
    # Keys beyond a prompt are hidden from it by causality, or by `prefix` where that is lifted.
    mask = Mask(causal=True, prefix=real if self.config.prefix_lm else None)
    _, kept = self._decode(prompts, mask=mask, keep=True)
    return start_cache(kept, lengths, max_decode_length, copies, self.config.scan_layers)

  def decode_step(self, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """Feeds tokens [rows]; gives the logits [rows, vocab] of what follows, and the cache."""
    index, number = cache["index"], cache["number"]
    step = {"mask": Mask(), "positions": index[:, None], "step": Step.of(cache)}
    x, layers = self._decode(tokens[:, None], cache["layers"], **step)
    return self.project(x[:, 0]), cache | {"index": index + 1, "number": number + 1, "layers": layers}


def prompt_lengths(batch: Batch) -> jax.Array:
  """Tokens in each prompt, [batch]: by segment ids or the prefix mask where given, else whole rows.

  At least one: a row that only fills up a batch is read as one padding token.
  """
  for feature in ("decoder_segment_ids", "decoder_causal_attention"):
    if feature in batch:
      return jnp.maximum(jnp.sum(batch[feature] > 0, axis=1).astype(jnp.int32), 1)
  rows, length = batch["decoder_input_tokens"].shape
  return jnp.full((rows,), length, jnp.int32)
