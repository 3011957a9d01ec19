"""From documents to rows: where each row begins in the tokens of all documents read end to end, and how long it is."""

from __future__ import annotations

import numpy as np

from t5like.objectives.ragged import numbered


def separate(tokens: np.ndarray, lengths: np.ndarray, separator: int) -> tuple[np.ndarray, np.ndarray]:
  """Documents end to end [tokens] and their lengths, each closed by `separator`."""
  out = np.full(len(tokens) + len(lengths), separator, tokens.dtype)
  out[np.arange(len(tokens)) + np.repeat(np.arange(len(lengths)), lengths)] = tokens
  return out, lengths + 1


def stream_rows(total: int, raw: int) -> tuple[np.ndarray, np.ndarray]:
  """Rows of `raw` tokens whatever the documents; the last may be shorter."""
  starts = np.arange(0, total, raw)
  return starts, np.minimum(raw, total - starts)


def document_rows(lengths: np.ndarray, raw: int) -> tuple[np.ndarray, np.ndarray]:
  """Rows of at most `raw` tokens of one document."""
  pieces = -(-lengths // raw)
  begin = np.repeat(np.cumsum(lengths) - lengths, pieces)
  inside = numbered(pieces) * raw
  return begin + inside, np.minimum(raw, np.repeat(lengths, pieces) - inside)


def sentence_rows(ends: np.ndarray, total: int, raw: int) -> tuple[np.ndarray, np.ndarray]:
  """Rows of as many whole sentences as `raw` tokens hold, one after the other.

  `ends` are the positions behind each sentence, in order. A sentence longer than a row is cut.
  """
  bounds = np.unique(np.concatenate([ends, [0, total]]))
  # Sentences too long for a row are cut into pieces first.
  sizes = np.diff(bounds)
  pieces = -(-sizes // raw)
  bounds = np.concatenate([np.repeat(bounds[:-1], pieces) + numbered(pieces) * raw, [total]])
  # The last bound that a row beginning at each bound can reach.
  reach = np.searchsorted(bounds, bounds + raw, side="right") - 1
  starts, at = [], 0
  while at < len(bounds) - 1:
    starts.append(at)
    at = int(reach[at])
  taken = np.asarray([*starts, len(bounds) - 1])
  return bounds[taken[:-1]], np.diff(bounds[taken])
