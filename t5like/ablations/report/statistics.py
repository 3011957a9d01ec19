"""What a few seeds can say: their spread, ties with the best, and whether two orders agree.

Everything is counted exactly where that is possible: with four to ten rows a table, approximations for large samples
would be wrong where they matter.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

TIE_DEVIATIONS = 2.0  # results this many standard deviations below the best are ties (Raffel et al. 2019, section 3.1)
_EXACT_ROWS = 10  # up to here every order is counted; beyond, orders are drawn
DRAWN_ORDERS = 20_000
_ROUNDING = 1e-9  # scores have two decimals: 83.28 - 2 x 0.235 must equal 82.81


def mean(values: Sequence[float]) -> float:
  return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float | None:
  """Of a sample (n - 1); None for a single value, which has no spread that could be known."""
  if len(values) < 2:
    return None
  centre = mean(values)
  return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


@dataclasses.dataclass(frozen=True)
class Spread:
  """The standard deviation of one run, from all recipes that were run with two or more seeds."""

  deviation: float
  degrees_of_freedom: int


def pooled_spread(samples: Sequence[Sequence[float]]) -> Spread | None:
  """Squared deviations from each recipe's own mean, over all recipes: two seeds of each say little, all together more.

  None where no recipe has two seeds, or where all seeds agree to the last digit: nothing can be measured in it.
  """
  repeated = [sample for sample in samples if len(sample) > 1]
  degrees = sum(len(sample) - 1 for sample in repeated)
  squares = math.fsum((value - mean(sample)) ** 2 for sample in repeated for value in sample)
  if not degrees or squares <= _ROUNDING**2:
    return None
  return Spread(math.sqrt(squares / degrees), degrees)


def ties_with_best(scores: Mapping[str, float], deviation: float) -> set[str]:
  """The names within two standard deviations of the highest score: those the paper prints in bold."""
  if not scores:
    return set()
  limit = max(scores.values()) - TIE_DEVIATIONS * deviation - _ROUNDING
  return {name for name, score in scores.items() if score >= limit}


@dataclasses.dataclass(frozen=True)
class RankCorrelation:
  """How well two orders of n rows agree: 1 is the same order, -1 the reverse.

  `*_p` is the share of all orders that agree at least as well (one-sided): of chance, were there no connection.
  None where one side has no order, all its scores being equal.
  """

  n: int
  spearman: float | None
  kendall: float | None
  spearman_p: float | None
  kendall_p: float | None
  exact: bool  # whether every order was counted for p, or a sample of them


def ranks(values: Sequence[float]) -> np.ndarray:
  """From 1, the lowest; equal values share the mean of their ranks."""
  array = np.asarray(values, float)
  below = (array[None, :] < array[:, None]).sum(axis=1)
  equal = (array[None, :] == array[:, None]).sum(axis=1)
  return below + (equal + 1) / 2


def rank_correlation(ours: Sequence[float], theirs: Sequence[float]) -> RankCorrelation | None:
  """Spearman's rho and Kendall's tau-b, ties allowed; None below three rows, where any order would do."""
  n = len(ours)
  if n < 3:
    return None
  a, b = ranks(ours), ranks(theirs)
  if len(set(a)) == 1 or len(set(b)) == 1:
    return RankCorrelation(n, None, None, None, None, exact=True)
  centred = a - a.mean(), b - b.mean()
  rho = float(centred[0] @ centred[1] / math.sqrt((centred[0] @ centred[0]) * (centred[1] @ centred[1])))
  signs = [np.sign(side[:, None] - side[None, :]) for side in (a, b)]
  tau = float((signs[0] * signs[1]).sum() / math.sqrt((signs[0] ** 2).sum() * (signs[1] ** 2).sum()))
  exact = n <= _EXACT_ROWS
  chance = _share_of_all_orders if exact else _share_of_drawn_orders
  return RankCorrelation(n, rho, tau, *chance(a, b), exact)


def _share_of_all_orders(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
  """One-sided p of Spearman's and Kendall's statistic over all n! ways to pair b with a."""
  a, b = (np.round(2 * side).astype(int) for side in (a, b))  # shared ranks are halves
  concordance = np.sign(a[:, None] - a[None, :]) * np.sign(b[:, None] - b[None, :])
  observed = int(a @ b), int(concordance.sum()) // 2  # every pair once
  counted = _distributions(tuple(sorted(a)), tuple(sorted(b)))
  return tuple(_share_at_least(values, value) for values, value in zip(counted, observed, strict=True))


@functools.lru_cache(maxsize=32)  # without ties, all groups of a table share it
def _distributions(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Counter[int], Counter[int]]:
  items = np.array(b)
  signs = np.sign(items[:, None] - items[None, :])
  return (
    _distribution(a, lambda chosen, before, level: level * int(items[chosen].sum())),
    _distribution(a, lambda chosen, before, level: int(signs[np.ix_(chosen, before)].sum())),
  )


def _distribution(levels: Sequence[int], gain: Callable[[list[int], list[int], int], int]) -> Counter[int]:
  """How many pairings of n items with the sorted `levels` have each value of a statistic.

  Levels are filled from the lowest: `gain(chosen, before, level)` is what the items `chosen` for a level add, given
  those on the levels below. Which items are below matters, not their order, so that 2^n sets stand for n! pairings.
  """
  everything = frozenset(range(len(levels)))
  counts: dict[frozenset[int], Counter[int]] = {frozenset(): Counter({0: 1})}
  for level, group in itertools.groupby(levels):
    size = len(list(group))
    grown: dict[frozenset[int], Counter[int]] = {}
    for before, values in counts.items():
      for chosen in itertools.combinations(sorted(everything - before), size):
        added = gain(list(chosen), sorted(before), level)
        into = grown.setdefault(before.union(chosen), Counter())
        for value, count in values.items():
          into[value + added] += count * math.factorial(size)
    counts = grown
  return counts[everything]


def _share_at_least(distribution: Mapping[int, int], observed: int) -> float:
  return sum(count for value, count in distribution.items() if value >= observed) / sum(distribution.values())


def _share_of_drawn_orders(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
  """As above over a sample of orders, the same in every report; the observed order counts as one of them."""
  draw = np.random.default_rng(0)
  orders = draw.permuted(np.tile(np.arange(len(a)), (DRAWN_ORDERS, 1)), axis=1)
  shuffled = b[orders]  # [orders, n]
  reached_rho = int((shuffled @ a >= a @ b - _ROUNDING).sum())
  concordance, observed = np.zeros(DRAWN_ORDERS), 0.0
  for i, j in itertools.combinations(range(len(a)), 2):
    concordance += np.sign(a[i] - a[j]) * np.sign(shuffled[:, i] - shuffled[:, j])
    observed += np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])
  reached_tau = int((concordance >= observed).sum())
  return (reached_rho + 1) / (DRAWN_ORDERS + 1), (reached_tau + 1) / (DRAWN_ORDERS + 1)
