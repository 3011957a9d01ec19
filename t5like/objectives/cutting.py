"""Cuts documents into rows: the start of each row in the tokens of all documents end to end, and its length."""

from __future__ import annotations

import numpy as np

from t5like.objectives.ragged import numbered


def separate(tokens: np.ndarray, lengths: np.ndarray, separator: int) -> tuple[np.ndarray, np.ndarray]:
  """Appends `separator` to each document; takes and returns documents end to end [tokens] and their lengths."""
  out = np.full(len(tokens) + len(lengths), separator, tokens.dtype)
  out[np.arange(len(tokens)) + np.repeat(np.arange(len(lengths)), lengths)] = tokens
  return out, lengths + 1


def stream_rows(total: int, raw: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows of `raw` tokens, regardless of document boundaries; the last may be shorter."""
  starts = np.arange(0, total, raw)
  return starts, np.minimum(raw, total - starts)


def document_rows(lengths: np.ndarray, raw: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows of at most `raw` tokens, each from one document."""
  pieces = -(-lengths // raw)
  begin = np.repeat(np.cumsum(lengths) - lengths, pieces)
  inside = numbered(pieces) * raw
  return begin + inside, np.minimum(raw, np.repeat(lengths, pieces) - inside)


def sentence_rows(ends: np.ndarray, total: int, raw: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows of as many complete sentences as fit into `raw` tokens.

  `ends` are the positions after each sentence, in order. A sentence longer than a row is split.
  """
  bounds = np.unique(np.concatenate([ends, [0, total]]))
  # Sentences too long for a row are split first.
  sizes = np.diff(bounds)
  pieces = -(-sizes // raw)
  bounds = np.concatenate([np.repeat(bounds[:-1], pieces) + numbered(pieces) * raw, [total]])
  # The last bound that still fits into a row starting at each bound.
  last = np.searchsorted(bounds, bounds + raw, side="right") - 1
  starts, at = [], 0
  while at < len(bounds) - 1:
    starts.append(at)
    at = int(last[at])
  taken = np.asarray([*starts, len(bounds) - 1])
  return bounds[taken[:-1]], np.diff(bounds[taken])
