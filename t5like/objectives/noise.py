"""Which tokens are noise: masks [rows, length], True where a token is to be predicted."""

import numpy as np

from t5like.objectives.randomness import Draws


def noise_counts(length: int, density: float, mean_span_length: float) -> tuple[int, int]:
  """Noise tokens and noise spans in a row of `length` tokens (round half to even, as the original)."""
  tokens = min(max(round(length * density), 1), length - 1)
  spans = max(round(tokens / mean_span_length), 1)
  return tokens, min(spans, tokens, length - tokens)


def random_spans(
  draws: Draws, length: int, density: float, mean_span_length: float, always_end_with_noise: bool
) -> np.ndarray:
  """Noise in spans whose lengths are a uniformly drawn composition of the noise tokens.

  The original library interleaves the spans so that a row always starts with text and ends with
  noise (`always_end_with_noise`); otherwise each row flips a coin between that and its mirror, and
  no position is favoured.
  """
  num_noise, num_spans = noise_counts(length, density, mean_span_length)
  noise = _composition(draws, "noise span lengths", num_noise, num_spans)
  text = _composition(draws, "text span lengths", length - num_noise, num_spans)
  interleaved = np.stack([text, noise], axis=2).reshape(len(noise), -1)  # [rows, 2 * spans]
  boundaries = np.cumsum(interleaved, axis=1)[:, :-1]
  flips = np.zeros((len(noise), length), np.int8)
  np.put_along_axis(flips, boundaries, 1, axis=1)
  mask = (np.cumsum(flips, axis=1, dtype=np.int16) & 1).astype(bool)
  if not always_end_with_noise:
    mirrored = draws.uniform("mirror", 1)[:, 0] < 0.5
    mask[mirrored] = mask[mirrored, ::-1]
  return mask


def _composition(draws: Draws, purpose: str, total: int, parts: int) -> np.ndarray:
  """[rows, parts] positive integers that sum to `total`, every such sequence equally likely."""
  cuts = draws.subsets(purpose, total - 1, parts - 1) + 1
  edges = np.concatenate([np.zeros((len(cuts), 1), np.int64), cuts, np.full((len(cuts), 1), total)], axis=1)
  return np.diff(edges, axis=1)
