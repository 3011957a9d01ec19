"""Ragged arrays: rows of different lengths in one array."""

from __future__ import annotations

import dataclasses

import numpy as np


def within(lengths: np.ndarray, width: int) -> np.ndarray:
  """Returns a mask [rows, width] that is True on the first `lengths[r]` positions of each row."""
  return np.arange(width)[None, :] < lengths[:, None]


def numbered(counts: np.ndarray) -> np.ndarray:
  """Returns 0, 1, 2, ... within each row, for rows of `counts` items end to end."""
  return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclasses.dataclass(frozen=True)
class Ragged:
  """Rows of different lengths, padded with zeros."""

  tokens: np.ndarray  # [rows, width] int32
  lengths: np.ndarray  # [rows] int64

  @classmethod
  def of(cls, values: np.ndarray, lengths: np.ndarray) -> Ragged:
    """Builds it from the values of all rows end to end."""
    tokens = np.zeros((len(lengths), int(lengths.max(initial=0))), np.int32)
    if lengths.size and np.all(lengths == lengths[0]):
      tokens[:] = values.reshape(tokens.shape)
    else:
      tokens[within(lengths, tokens.shape[1])] = values
    return cls(tokens, lengths)

  @classmethod
  def full(cls, tokens: np.ndarray) -> Ragged:
    """Builds it from rows that all have the full width."""
    return cls(tokens, np.full(len(tokens), tokens.shape[1], np.int64))

  @classmethod
  def gather(cls, values: np.ndarray, keep: np.ndarray) -> Ragged:
    """Moves the kept values of each row to its front."""
    return cls.of(values[keep], np.count_nonzero(keep, axis=1))

  @property
  def valid(self) -> np.ndarray:
    """A mask [rows, width] that is True on tokens."""
    return within(self.lengths, self.tokens.shape[1])
