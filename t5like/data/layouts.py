"""From token rows to the batch a model takes (names as in seqio and T5X)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from t5like.objectives import Ragged

Batch = dict[str, np.ndarray]


def with_eos(rows: Ragged, length: int, eos: int) -> np.ndarray:
  """Rows trimmed so that end-of-sequence still fits, closed by it, padded with 0 to [rows, length]."""
  out = np.zeros((len(rows.tokens), length), np.int32)
  kept = min(rows.tokens.shape[1], length)
  out[:, :kept] = rows.tokens[:, :kept]
  last = np.minimum(rows.lengths, length - 1)
  out[np.arange(length)[None, :] > last[:, None]] = 0
  out[np.arange(len(out)), last] = eos
  return out


def ragged(rows: list[np.ndarray]) -> Ragged:
  """Rows of different lengths as one padded array."""
  return Ragged.of(np.concatenate(rows), np.array([len(row) for row in rows], np.int64))


def encoder_decoder(inputs: np.ndarray, targets: np.ndarray) -> Batch:
  """Inputs to the encoder, targets to the decoder; both [rows, length], closed by end-of-sequence, 0-padded."""
  # Under a padded target the shifted row still shows end-of-sequence; weight 0 takes it out of the loss.
  return {
    "encoder_input_tokens": inputs,
    "decoder_input_tokens": _shifted(targets),
    "decoder_target_tokens": targets,
    "decoder_loss_weights": (targets > 0).astype(np.float32),
  }


def decoder(inputs: np.ndarray, targets: np.ndarray) -> Batch:
  """Inputs and targets end to end in rows of [inputs + targets]; only targets count in the loss."""
  joined = np.concatenate([inputs, targets], axis=1)
  kept = Ragged.gather(joined, joined > 0)
  tokens = np.zeros_like(joined)
  tokens[:, : kept.tokens.shape[1]] = kept.tokens
  is_target = (tokens > 0) & ~_up_to(inputs, joined.shape[1], extra=0)
  return {
    "decoder_input_tokens": _shifted(tokens),
    "decoder_target_tokens": tokens,
    "decoder_loss_weights": is_target.astype(np.float32),
  }


def prefix_lm(inputs: np.ndarray, targets: np.ndarray) -> Batch:
  """As `decoder`, with the positions marked that see one another in both directions.

  These are the inputs and one position more: the decoder is fed rows shifted by one, so the last
  input stands where the first target is predicted.
  """
  batch = decoder(inputs, targets)
  width = batch["decoder_target_tokens"].shape[1]
  return batch | {"decoder_causal_attention": _up_to(inputs, width, extra=1).astype(np.int32)}


def decoder_prompts(inputs: np.ndarray) -> Batch:
  """What a decoder reads before it answers: [rows, inputs + 1], the start token and the inputs."""
  tokens = np.concatenate([np.zeros_like(inputs[:, :1]), inputs], axis=1)
  return {
    "decoder_input_tokens": tokens,
    "decoder_causal_attention": _up_to(inputs, tokens.shape[1], extra=1).astype(np.int32),
  }


# By the name that a model's `batch_layout` gives: inputs and targets to a training batch ...
LAYOUTS: dict[str, Callable[[np.ndarray, np.ndarray], Batch]] = {
  "encoder_decoder": encoder_decoder,
  "decoder": decoder,
  "prefix_lm": prefix_lm,
}
# ... and inputs alone to what decoding starts from.
PROMPTS: dict[str, Callable[[np.ndarray], Batch]] = {
  "encoder_decoder": lambda inputs: {"encoder_input_tokens": inputs},
  "decoder": decoder_prompts,
  "prefix_lm": decoder_prompts,
}


def _shifted(tokens: np.ndarray) -> np.ndarray:
  """Moved right by one: a decoder starts from 0, the padding id."""
  shifted = np.zeros_like(tokens)
  shifted[:, 1:] = tokens[:, :-1]
  return shifted


def _up_to(inputs: np.ndarray, width: int, extra: int) -> np.ndarray:
  """[rows, width], True on as many positions as a row has inputs, and `extra` more."""
  return np.arange(width)[None, :] < ((inputs > 0).sum(axis=1) + extra)[:, None]
