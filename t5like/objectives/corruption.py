"""From tokens and a noise mask to inputs and targets; all functions work on rows [rows, length]."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Ragged:
  """Rows of different lengths, padded with zeros."""

  tokens: np.ndarray  # [rows, width] int32
  lengths: np.ndarray  # [rows] int64

  @classmethod
  def of(cls, values: np.ndarray, lengths: np.ndarray) -> Ragged:
    """From the values of all rows end to end."""
    tokens = np.zeros((len(lengths), int(lengths.max(initial=0))), np.int32)
    tokens[np.arange(tokens.shape[1])[None, :] < lengths[:, None]] = values
    return cls(tokens, lengths)

  @classmethod
  def gather(cls, values: np.ndarray, keep: np.ndarray) -> Ragged:
    """The kept values of each row, moved to its front."""
    return cls.of(values[keep], keep.sum(axis=1))


def span_starts(mask: np.ndarray) -> np.ndarray:
  """True at the first position of every run of True."""
  starts = mask.copy()
  starts[:, 1:] &= ~mask[:, :-1]
  return starts


def replace_spans(tokens: np.ndarray, mask: np.ndarray, sentinels: np.ndarray) -> Ragged:
  """Each run of noise becomes one sentinel, a new one for every run."""
  starts = span_starts(mask)
  # Positions before the first span look up sentinel -1; np.where never takes that value.
  numbered = sentinels[np.cumsum(starts, axis=1) - 1]
  return Ragged.gather(np.where(starts, numbered, tokens), ~mask | starts)


def spans_after_sentinels(tokens: np.ndarray, mask: np.ndarray, sentinels: np.ndarray, closing: bool) -> Ragged:
  """Every run of noise after the sentinel that stands for it; `closing` adds the next sentinel at the end."""
  starts = span_starts(mask)
  number = np.cumsum(starts, axis=1)
  rank = np.cumsum(mask, axis=1)
  counts, spans = rank[:, -1], number[:, -1]
  lengths = counts + spans + int(closing)
  out = np.zeros((len(tokens), int(lengths.max(initial=0))), np.int32)
  rows, columns = np.nonzero(mask)
  out[rows, rank[rows, columns] - 1 + number[rows, columns]] = tokens[rows, columns]
  rows, columns = np.nonzero(starts)
  out[rows, rank[rows, columns] + number[rows, columns] - 2] = sentinels[number[rows, columns] - 1]
  if closing:
    out[np.arange(len(out)), lengths - 1] = sentinels[spans]
  return Ragged(out, lengths)
