"""Statistics of a few seeds: standard deviation, ties with the best, and rank correlation.

Statistics are exact where possible: with four to ten rows per table, large-sample approximations would be wrong.
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

TIE_DEVIATIONS = 2.0  # scores at most this far below the best are ties (Raffel et al. 2019, section 3.1)
_EXACT_ROWS = 10  # beyond, permutations are sampled instead of enumerated
SAMPLED_PERMUTATIONS = 20_000
_ROUNDING = 1e-9  # scores have two decimals: 83.28 - 2 x 0.235 must equal 82.81


def standard_deviation(values: Sequence[float]) -> float | None:
  """Returns the standard deviation of a sample (n - 1); None for a single value."""
  return statistics.stdev(values) if len(values) > 1 else None


@dataclasses.dataclass(frozen=True)
class Spread:
  """The standard deviation of one run, from all recipes that were run with two or more seeds."""

  deviation: float
  degrees_of_freedom: int


def pooled_spread(samples: Sequence[Sequence[float]]) -> Spread | None:
  """Pools the squared deviations from each recipe's mean over all recipes, as two seeds alone are not informative.

  None if no recipe has two seeds, or if all seeds are identical.
  """
  repeated = [sample for sample in samples if len(sample) > 1]
  degrees = sum(len(sample) - 1 for sample in repeated)
  squares = math.fsum((value - mean(sample)) ** 2 for sample in repeated for value in sample)
  if not degrees or squares <= _ROUNDING**2:
    return None
  return Spread(math.sqrt(squares / degrees), degrees)


def ties_with_best(scores: Mapping[str, float], deviation: float) -> set[str]:
  """Returns the names within two standard deviations of the highest score, which the paper prints in bold."""
  if not scores:
    return set()
  limit = max(scores.values()) - TIE_DEVIATIONS * deviation - _ROUNDING
  return {name for name, score in scores.items() if score >= limit}


@dataclasses.dataclass(frozen=True)
class RankCorrelation:
  """The agreement of two rankings of n rows: 1 is the same ranking, -1 the reverse.

  `*_p` is the share of all permutations that agree at least as well (one-sided p-value).
  None if all scores of one side are equal.
  """

  n: int
  spearman: float | None
  kendall: float | None
  spearman_p: float | None
  kendall_p: float | None
  exact: bool  # whether p is over all permutations, or a sample of them


def rank_correlation(ours: Sequence[float], theirs: Sequence[float]) -> RankCorrelation | None:
  """Returns Spearman's rho and Kendall's tau-b, with ties; None for fewer than three rows."""
  n = len(ours)
  if n < 3:
    return None
  if len(set(ours)) == 1 or len(set(theirs)) == 1:
    return RankCorrelation(n, None, None, None, None, exact=True)
  from scipy import stats  # takes a second to import, and the workers of a sweep do not need it

  rho, tau = stats.spearmanr(ours, theirs).statistic, stats.kendalltau(ours, theirs).statistic
  return RankCorrelation(n, float(rho), float(tau), *_permutation_p_values(ours, theirs), exact=n <= _EXACT_ROWS)


def _permutation_p_values(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
  """Returns the one-sided p-values of Spearman's and Kendall's statistic over permutations of theirs.

  scipy's permutation_test with kendalltau takes 78 s for eight rows on two busy cores, and samples other permutations
  than earlier reports. A sample includes the observed permutation.
  """
  a, b = _doubled_ranks(ours), _doubled_ranks(theirs)
  drawn = int(len(a) > _EXACT_ROWS)
  # Over all permutations, the order of the rows does not matter: without ties, all tables of n rows share the counts.
  given = (a, b) if drawn else (np.sort(a), np.sort(b))
  products, concordance = _count_permutations(*(tuple(ranks.tolist()) for ranks in given))
  order = sum(int(np.sign((a[i] - a[j]) * (b[i] - b[j]))) for i, j in itertools.combinations(range(len(a)), 2))
  reached = products[int(a @ b) :].sum(), concordance[math.comb(len(a), 2) + order :].sum()
  return tuple((int(count) + drawn) / (int(products.sum()) + drawn) for count in reached)


@functools.lru_cache(maxsize=64)
def _count_permutations(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
  """Returns how many permutations of b have each sum of products with a, and each concordance, from -n(n-1)/2 on."""
  # Doubled ranks and pairs of ten rows fit into a byte, which is three times as fast.
  small = np.int32 if len(a) > _EXACT_ROWS else np.int8
  shuffled = np.array(b, small)[_permutations(len(a))]  # [n, permutations]
  products, concordance = np.zeros(shuffled.shape[1], np.int32), np.zeros(shuffled.shape[1], small)
  for rank, row in zip(a, shuffled, strict=True):
    products += np.int32(rank) * row
  for i, j in itertools.combinations(range(len(a)), 2):
    if order := int(np.sign(a[i] - a[j])):
      concordance += small(order) * np.sign(shuffled[i] - shuffled[j])
  pairs = math.comb(len(a), 2)
  return np.bincount(products), np.bincount(concordance.astype(np.int32) + pairs, minlength=2 * pairs + 1)


def _doubled_ranks(scores: Sequence[float]) -> np.ndarray:
  """Returns twice the rank of each score, an integer: shared ranks are multiples of 1/2."""
  from scipy import stats

  return np.round(2 * stats.rankdata(scores)).astype(np.int32)


@functools.cache
def _permutations(n: int) -> np.ndarray:
  """Returns permutations of n rows, [n, permutations]: all of them, or a fixed sample."""
  if n > _EXACT_ROWS:
    drawn = np.random.default_rng(0).permuted(np.tile(np.arange(n), (SAMPLED_PERMUTATIONS, 1)), axis=1)
    return np.ascontiguousarray(drawn.T)
  every = np.zeros((1, 1), np.int8)
  for row in range(1, n):  # into every place of the permutations of the rows before it
    every = np.concatenate([np.insert(every, place, row, axis=0) for place in range(row + 1)], axis=1)
  return every
