"""How often each task is drawn in multi-task training (Raffel et al. 2019, section 3.5.2)."""

from __future__ import annotations

from collections.abc import Mapping

from t5like.errors import UserError, nearest

STRATEGIES = ("equal", "proportional", "temperature")


def mixing_rates(
  sizes: Mapping[str, int], strategy: str, maximum: int | None = None, temperature: float = 1.0
) -> dict[str, float]:
  """Rates that sum to 1: all alike, by size up to `maximum`, or those to the power 1 / temperature."""
  if strategy not in STRATEGIES:
    raise UserError(f"no strategy {strategy!r}", nearest=nearest(strategy, STRATEGIES), known=", ".join(STRATEGIES))
  if strategy == "equal":
    return {task: 1 / len(sizes) for task in sizes}
  limited = {task: size if maximum is None else min(size, maximum) for task, size in sizes.items()}
  weights = {task: size ** (1 / temperature) for task, size in limited.items()}
  return {task: weight / sum(weights.values()) for task, weight in weights.items()}
