"""From token rows to the batch a model takes (names as in seqio and T5X)."""

from __future__ import annotations

import numpy as np

from t5like.objectives.corruption import Ragged

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
  lengths = np.array([len(row) for row in rows], np.int64)
  keep = np.arange(int(lengths.max(initial=0)))[None, :] < lengths[:, None]
  tokens = np.zeros(keep.shape, np.int32)
  tokens[keep] = np.concatenate(rows)
  return Ragged(tokens, lengths)


def encoder_decoder(inputs: np.ndarray, targets: np.ndarray) -> Batch:
  """Inputs and targets [rows, length], both closed by end-of-sequence and padded with 0."""
  shifted = np.zeros_like(targets)
  shifted[:, 1:] = targets[:, :-1]  # the decoder starts from 0, the padding id
  # Under a padded target the shifted row still shows end-of-sequence; weight 0 takes it out of the loss.
  return {
    "encoder_input_tokens": inputs,
    "decoder_input_tokens": shifted,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": (targets > 0).astype(np.float32),
  }
