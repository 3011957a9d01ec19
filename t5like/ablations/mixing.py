"""Mixing rates of multi-task training (Raffel et al. 2019, section 3.5.2)."""

from __future__ import annotations

from collections.abc import Mapping

from t5like.errors import UserError, nearest
from t5like.tasks.mixing_rates import mixing_rates as rates_by_size

STRATEGIES = ("equal", "proportional", "temperature")


def mixing_rates(
  sizes: Mapping[str, int], strategy: str, maximum: int | None = None, temperature: float = 1.0
) -> dict[str, float]:
  """Returns rates that sum to 1: equal, by size up to `maximum`, or the latter to the power 1 / temperature."""
  if strategy not in STRATEGIES:
    raise UserError(
      f"unknown mixing strategy {strategy!r}", nearest=nearest(strategy, STRATEGIES), known=", ".join(STRATEGIES)
    )
  if strategy == "equal":
    return {task: 1 / len(sizes) for task in sizes}
  weights = rates_by_size(sizes, maximum, temperature)
  return {task: weight / sum(weights.values()) for task, weight in weights.items()}
