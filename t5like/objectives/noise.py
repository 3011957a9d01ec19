"""Which tokens are noise: masks [rows, length], True where a token is to be predicted."""

import numpy as np

from t5like.objectives.randomness import Draws


def noise_counts(length: int, density: float, mean_span_length: float) -> tuple[int, int]:
  """Noise tokens and noise spans in a row of `length` tokens (round half to even, as the original)."""
  tokens = min(max(round(length * density), 1), length - 1)
  spans = max(round(tokens / mean_span_length), 1)
  return tokens, min(spans, tokens, length - tokens)


def random_spans(draws: Draws, length: int, density: float, mean_span_length: float, ends_free: bool) -> np.ndarray:
  """Noise in spans whose lengths are a uniformly drawn composition of the noise tokens.

  With `ends_free` every placement of the spans that leaves text between them is equally likely.
  Without, as in the original library, text stands before every span and none after the last: the
  first token is never noise and the last always is.
  """
  num_noise, num_spans = noise_counts(length, density, mean_span_length)
  num_text = length - num_noise
  noise = _composition(draws, "noise span lengths", num_noise, num_spans)
  if ends_free:
    text = _composition(draws, "text span lengths", num_text + 2, num_spans + 1)
    text[:, [0, -1]] -= 1  # the outer two may be empty
  else:
    text = _composition(draws, "text span lengths", num_text, num_spans)
  interleaved = np.stack([text[:, :num_spans], noise], axis=2).reshape(len(noise), -1)  # [rows, 2 * spans]
  flips = np.zeros((len(noise), length + 1), np.int8)
  np.put_along_axis(flips, np.cumsum(interleaved, axis=1), 1, axis=1)
  return (np.cumsum(flips[:, :length], axis=1, dtype=np.int16) & 1).astype(bool)


def _composition(draws: Draws, purpose: str, total: int, parts: int) -> np.ndarray:
  """[rows, parts] positive integers that sum to `total`, every such sequence equally likely."""
  cuts = draws.subsets(purpose, total - 1, parts - 1) + 1
  edges = np.concatenate([np.zeros((len(cuts), 1), np.int64), cuts, np.full((len(cuts), 1), total)], axis=1)
  return np.diff(edges, axis=1)
