"""From tokens and a noise mask to inputs and targets; all functions work on rows [rows, width]."""

from __future__ import annotations

import numpy as np

from t5like.objectives.ragged import Ragged, numbered


def span_starts(mask: np.ndarray) -> np.ndarray:
  """True at the first position of every run of True."""
  starts = mask.copy()
  starts[:, 1:] &= ~mask[:, :-1]
  return starts


def first_spans(mask: np.ndarray, most: int) -> np.ndarray:
  """At most the first `most` runs of each row."""
  starts = span_starts(mask)
  if not mask.size or np.count_nonzero(starts, axis=1).max() <= most:
    return mask
  return mask & (np.cumsum(starts, axis=1) <= most)


def replace_spans(rows: Ragged, mask: np.ndarray, sentinels: np.ndarray) -> Ragged:
  """Each run of noise becomes one sentinel, a new one for every run."""
  starts = span_starts(mask)
  out = rows.tokens.astype(np.int32, copy=True)
  # Flat positions: np.nonzero on two axes costs four times as much.
  out.reshape(-1)[np.flatnonzero(starts)] = sentinels[numbered(np.count_nonzero(starts, axis=1))]
  keep = ~mask
  keep |= starts
  if np.any(rows.lengths < mask.shape[1]):
    keep &= rows.valid
  return Ragged.gather(out, keep)


def spans_after_sentinels(rows: Ragged, mask: np.ndarray, sentinels: np.ndarray) -> Ragged:
  """Every run of noise after the sentinel that stands for it, and one more sentinel at the end."""
  noise = np.count_nonzero(mask, axis=1)
  row_of_noise = np.repeat(np.arange(len(mask)), noise)
  position = np.flatnonzero(mask)
  first = np.ones(len(position), bool)  # the first token of its span
  first[1:] = (position[1:] != position[:-1] + 1) | (row_of_noise[1:] != row_of_noise[:-1])
  spans = np.bincount(row_of_noise[first], minlength=len(mask))
  lengths = noise + spans + 1
  # Before a noise token stand all earlier noise, all sentinels so far, and the earlier rows' closing sentinels.
  place = np.arange(len(position)) + np.cumsum(first) + row_of_noise
  out = np.empty(int(lengths.sum()), np.int32)
  out[place] = rows.tokens.reshape(-1)[position]
  out[place[first] - 1] = sentinels[numbered(spans)]
  out[np.cumsum(lengths) - 1] = sentinels[spans]
  return Ragged.of(out, lengths)


def replace_tokens(rows: Ragged, mask: np.ndarray, replacement: int | np.ndarray) -> Ragged:
  """Every noise token becomes `replacement`: one id, or one for each position [rows, width]."""
  return Ragged(np.where(mask, np.asarray(replacement, np.int32), rows.tokens), rows.lengths)


def keep_noise(rows: Ragged, mask: np.ndarray) -> Ragged:
  return Ragged.gather(rows.tokens, mask)


def drop_noise(rows: Ragged, mask: np.ndarray) -> Ragged:
  return Ragged.gather(rows.tokens, ~mask & rows.valid)


def reorder(rows: Ragged, order: np.ndarray) -> Ragged:
  """The tokens of each row in another order [rows, width]."""
  return Ragged(np.take_along_axis(rows.tokens, order, axis=1), rows.lengths)
