"""Noise masks [rows, width]: True where a token is hidden or predicted.

Rows may differ in length; positions beyond a row's length are never noise.
"""

from __future__ import annotations

import numpy as np

from t5like.objectives.ragged import numbered, within
from t5like.objectives.randomness import Draws


def iid(draws: Draws, lengths: np.ndarray, width: int, density: float) -> np.ndarray:
  """Makes every token noise independently with probability `density`."""
  # 16 bits per token, four tokens per random number: the density is exact to 1 / 65,536.
  bits = draws.bits("iid noise", -(-width // 4)).view(np.uint16).reshape(len(lengths), -1)[:, :width]
  return (bits < round(density * 65_536)) & within(lengths, width)


def exact_count(draws: Draws, candidates: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Chooses `counts[r]` of the candidates [rows, width] of each row uniformly at random."""
  sizes = candidates.sum(axis=1)
  chosen = draws.subsets("exact noise", sizes, counts)
  # The n-th candidate of a row is noise where the n-th member of the subset is.
  mask = np.zeros_like(candidates)
  mask[candidates] = chosen[within(sizes, chosen.shape[1])]
  return mask


def noise_counts(
  lengths: int | np.ndarray, density: float, mean_span_length: float
) -> tuple[int | np.ndarray, int | np.ndarray]:
  """Returns the noise tokens and noise spans in rows of `lengths` tokens (rounded half to even, as the original).

  A row of one token has no noise, as nothing would be left to predict it from.
  """
  rows = np.asarray(lengths)
  tokens = np.minimum(np.maximum(np.rint(rows * density), 1), np.maximum(rows - 1, 0))
  spans = np.minimum(np.maximum(np.rint(tokens / mean_span_length), 1), np.minimum(tokens, rows - tokens))
  if rows.ndim == 0:
    return int(tokens), int(spans)
  return tokens.astype(np.int64), spans.astype(np.int64)


def random_spans(
  draws: Draws, lengths: np.ndarray, width: int, density: float, mean_span_length: float, ends_free: bool
) -> np.ndarray:
  """Returns noise in spans whose lengths are a uniformly sampled composition of the noise tokens.

  With `ends_free`, every placement of the spans that leaves text between them is equally likely.
  Without it, as in the original library, each span is preceded by text and the last ends the row: the
  first token is never noise, the last always is.
  """
  num_noise, num_spans = noise_counts(lengths, density, mean_span_length)
  ends = _span_ends(draws, num_noise, num_spans)
  return place_spans(draws, lengths, width, ends, num_spans, ends_free)


def _span_ends(draws: Draws, totals: np.ndarray, parts: np.ndarray) -> np.ndarray:
  """Samples the cumulative lengths of `parts[r]` spans [rows, max parts + 1]; every composition is equally likely."""
  cuts = draws.subsets("noise span lengths", np.maximum(totals - 1, 0), np.maximum(parts - 1, 0))
  ends = np.zeros((len(totals), int(parts.max(initial=0)) + 1), np.int64)
  row = np.repeat(np.arange(len(parts)), np.maximum(parts - 1, 0))
  ends[:, 1:-1][within(parts - 1, ends.shape[1] - 2)] = np.flatnonzero(cuts) - row * cuts.shape[1] + 1
  np.put_along_axis(ends, parts[:, None], totals[:, None], axis=1)
  return ends


def place_spans(
  draws: Draws, lengths: np.ndarray, width: int, ends: np.ndarray, spans: np.ndarray, ends_free: bool = True
) -> np.ndarray:
  """Returns the mask of spans with cumulative lengths `ends` [rows, max spans + 1], separated by text.

  Span i of a row starts after gap[i] tokens of text, where the gaps are a random subset of all gaps.
  """
  totals = np.take_along_axis(ends, spans[:, None], axis=1)[:, 0]
  text = lengths - totals
  if ends_free:
    gaps = draws.subsets("text between spans", text + 1, spans)
  else:
    gaps = np.zeros((len(lengths), int(text.max(initial=0)) + 1), bool)
    inner = draws.subsets("text between spans", np.maximum(text - 1, 0), np.maximum(spans - 1, 0))
    gaps[:, 1 : 1 + inner.shape[1]] = inner
    gaps[spans > 0, text[spans > 0]] = True
  gap = np.flatnonzero(gaps)
  row = np.repeat(np.arange(len(lengths)), spans)
  behind = row * (width + 1) + gap - row * gaps.shape[1]  # the span's start, not counting the noise before it
  number = row * ends.shape[1] + numbered(spans)  # flat index into ends
  flips = np.zeros((len(lengths), width + 1), np.int8)
  flat, ends = flips.reshape(-1), ends.reshape(-1)
  flat[behind + ends[number]] = 1
  flat[behind + ends[number + 1]] -= 1  # spans never touch, so each position flips once
  return np.cumsum(flips[:, :width], axis=1, dtype=np.int8).view(bool)


def sample_span_lengths(draws: Draws, budgets: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Samples lengths from `probabilities` (of 0, 1, 2, ...) until a row's token budget is used; trims the last.

  Returns lengths [rows, most spans], and which of them were sampled before the budget was reached.
  """
  mean = float(np.arange(len(probabilities)) @ probabilities)
  most = int(1.5 * budgets.max(initial=0) / mean) + 8  # a row that needs more gets slightly less noise
  cumulative = np.cumsum(probabilities)
  lengths = np.searchsorted(cumulative / cumulative[-1], draws.uniform("span lengths", most), side="right")
  before = np.cumsum(lengths, axis=1) - lengths
  used = before < budgets[:, None]
  return np.where(used, np.minimum(lengths, budgets[:, None] - before), 0), used


def place_spans_randomly(draws: Draws, lengths: np.ndarray, width: int, span_lengths: np.ndarray) -> np.ndarray:
  """Places the spans of positive length in `span_lengths` [rows, n] at random; returns the mask."""
  positive = span_lengths > 0
  order = np.argsort(~positive, axis=1, kind="stable")  # positive ones first, in the same order
  packed = np.take_along_axis(span_lengths, order, axis=1)
  ends = np.concatenate([np.zeros((len(packed), 1), np.int64), np.cumsum(packed, axis=1)], axis=1)
  # Spans are separated by a token: drop the last spans if a short row has no room for that.
  room = ends[:, 1:] + np.arange(packed.shape[1])[None, :] <= lengths[:, None]
  return place_spans(draws, lengths, width, ends, (positive.sum(axis=1)).clip(max=room.sum(axis=1)))
