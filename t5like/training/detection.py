"""Scores of replaced-token detection, from counts that add up over batches."""

from __future__ import annotations

import numpy as np

# The name of the counts in a model's outputs: [original or replaced, bins of the predicted probability].
COUNTS = "replaced_counts"


def detection_scores(counts: np.ndarray) -> dict[str, float]:
  """Returns accuracy, precision, recall (at probability 0.5) and AUC; NaN for those that have nothing to divide by."""
  counts = np.asarray(counts, np.float64)
  original, replaced = counts
  middle = counts.shape[1] // 2
  found, reported = replaced[middle:].sum(), counts[:, middle:].sum()
  # Pairs of a replaced and an original token, by which has the higher probability; a tie is half right.
  below = np.cumsum(original) - original
  pairs = np.sum(replaced * (below + original / 2))
  with np.errstate(invalid="ignore", divide="ignore"):
    scores = {
      "accuracy": (found + original[:middle].sum()) / counts.sum(),
      "precision": found / reported,
      "recall": found / replaced.sum(),
      "auc": pairs / (original.sum() * replaced.sum()),
    }
  return {f"discriminator_{name}": float(score) for name, score in scores.items()}
