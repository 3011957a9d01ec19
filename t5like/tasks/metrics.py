"""Scores of predictions against targets, in percent. Plain Python: no TensorFlow, no registry."""

from collections.abc import Sequence


def accuracy(targets: Sequence[object], predictions: Sequence[object]) -> dict[str, float]:
  """Share of predictions that equal their target."""
  right = sum(target == prediction for target, prediction in zip(targets, predictions, strict=True))
  return {"accuracy": 100 * right / len(targets)}
