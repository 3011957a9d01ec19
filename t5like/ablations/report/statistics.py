"""What a few seeds can say: their spread, ties with the best, and whether two orders agree.

Everything is counted exactly where that is possible: with four to ten rows a table, approximations for large samples
would be wrong where they matter.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from statistics import fmean as mean

import numpy as np
from scipy import stats

TIE_DEVIATIONS = 2.0  # results this many standard deviations below the best are ties (Raffel et al. 2019, section 3.1)
_EXACT_ROWS = 10  # up to here every order is counted; beyond, orders are drawn
DRAWN_ORDERS = 20_000
_ROUNDING = 1e-9  # scores have two decimals: 83.28 - 2 x 0.235 must equal 82.81


def standard_deviation(values: Sequence[float]) -> float | None:
  """Of a sample (n - 1); None for a single value, which has no spread that could be known."""
  return statistics.stdev(values) if len(values) > 1 else None


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


def rank_correlation(ours: Sequence[float], theirs: Sequence[float]) -> RankCorrelation | None:
  """Spearman's rho and Kendall's tau-b, ties allowed; None below three rows, where any order would do."""
  n = len(ours)
  if n < 3:
    return None
  if len(set(ours)) == 1 or len(set(theirs)) == 1:
    return RankCorrelation(n, None, None, None, None, exact=True)
  rho, tau = stats.spearmanr(ours, theirs).statistic, stats.kendalltau(ours, theirs).statistic
  return RankCorrelation(n, float(rho), float(tau), *_shares_of_orders(ours, theirs), exact=n <= _EXACT_ROWS)


def _shares_of_orders(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
  """One-sided p of Spearman's and Kendall's statistic over the orders in which theirs can be paired with ours.

  Not by scipy's permutation_test: with kendalltau as its statistic eight rows took 78 s on two busy cores, and it draws
  other orders than earlier reports. Where orders are drawn, the observed one counts as one of them.
  """
  a, b = (np.round(2 * stats.rankdata(side)).astype(np.int32) for side in (ours, theirs))  # shared ranks are halves
  shuffled = b[_orders(len(a))]  # [n, orders]
  products, concordance, observed = a @ shuffled, np.zeros(shuffled.shape[1], np.int32), 0
  for i, j in itertools.combinations(range(len(a)), 2):
    concordance += np.sign(a[i] - a[j]) * np.sign(shuffled[i] - shuffled[j])
    observed += int(np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]))
  drawn = int(len(a) > _EXACT_ROWS)
  reached = (products >= a @ b).sum(), (concordance >= observed).sum()
  return tuple((int(count) + drawn) / (shuffled.shape[1] + drawn) for count in reached)


@functools.cache
def _orders(n: int) -> np.ndarray:
  """Orders of n rows, [n, orders]: all of them, or a sample that is the same in every report."""
  if n > _EXACT_ROWS:
    drawn = np.random.default_rng(0).permuted(np.tile(np.arange(n), (DRAWN_ORDERS, 1)), axis=1)
    return np.ascontiguousarray(drawn.T)
  each = itertools.chain.from_iterable(itertools.permutations(range(n)))
  return np.ascontiguousarray(np.fromiter(each, np.int8, math.factorial(n) * n).reshape(-1, n).T)
