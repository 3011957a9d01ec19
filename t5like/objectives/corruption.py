"""Turns tokens and a noise mask into inputs and targets; all functions work on [rows, width]."""

from __future__ import annotations

import numpy as np

from t5like.objectives.ragged import Ragged, numbered


def span_starts(mask: np.ndarray) -> np.ndarray:
  """Returns a mask of the first position of every run of True."""
  starts = mask.copy()
  starts[:, 1:] &= ~mask[:, :-1]
  return starts


def first_spans(mask: np.ndarray, most: int) -> np.ndarray:
  """Keeps the first `most` runs of each row."""
  starts = span_starts(mask)
  if not mask.size or np.count_nonzero(starts, axis=1).max() <= most:
    return mask
  return mask & (np.cumsum(starts, axis=1) <= most)


def replace_spans(rows: Ragged, mask: np.ndarray, sentinels: np.ndarray) -> Ragged:
  """Replaces each run of noise with the next sentinel."""
  starts = span_starts(mask)
  out = rows.tokens.astype(np.int32, copy=True)
  # Flat positions: np.nonzero on two axes takes four times as long.
  out.reshape(-1)[np.flatnonzero(starts)] = sentinels[numbered(np.count_nonzero(starts, axis=1))]
  keep = ~mask
  keep |= starts
  if np.any(rows.lengths < mask.shape[1]):
    keep &= rows.valid
  return Ragged.gather(out, keep)


def spans_after_sentinels(rows: Ragged, mask: np.ndarray, sentinels: np.ndarray) -> Ragged:
  """Returns each run of noise after its sentinel, and one more sentinel at the end."""
  noise = np.count_nonzero(mask, axis=1)
  row_of_noise = np.repeat(np.arange(len(mask)), noise)
  position = np.flatnonzero(mask)
  first = np.ones(len(position), bool)  # the first token of its span
  first[1:] = (position[1:] != position[:-1] + 1) | (row_of_noise[1:] != row_of_noise[:-1])
  spans = np.bincount(row_of_noise[first], minlength=len(mask))
  lengths = noise + spans + 1
  # A noise token is preceded by all earlier noise, all sentinels so far, and the earlier rows' final sentinels.
  index = np.arange(len(position)) + np.cumsum(first) + row_of_noise
  out = np.empty(int(lengths.sum()), np.int32)
  out[index] = rows.tokens.reshape(-1)[position]
  out[index[first] - 1] = sentinels[numbered(spans)]
  out[np.cumsum(lengths) - 1] = sentinels[spans]
  return Ragged.of(out, lengths)


def replace_tokens(rows: Ragged, mask: np.ndarray, replacement: int | np.ndarray) -> Ragged:
  """Replaces every noise token with `replacement`: one id, or one for each position [rows, width]."""
  return Ragged(np.where(mask, np.asarray(replacement, np.int32), rows.tokens), rows.lengths)


def keep_noise(rows: Ragged, mask: np.ndarray) -> Ragged:
  return Ragged.gather(rows.tokens, mask)


def drop_noise(rows: Ragged, mask: np.ndarray) -> Ragged:
  return Ragged.gather(rows.tokens, ~mask & rows.valid)


def reorder(rows: Ragged, order: np.ndarray) -> Ragged:
  """Reorders the tokens of each row by `order` [rows, width]."""
  return Ragged(np.take_along_axis(rows.tokens, order, axis=1), rows.lengths)
