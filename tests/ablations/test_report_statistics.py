"""Standard deviations, ties and rank correlations, against manual calculations and the paper's bold type."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import rankdata as ranks

from t5like.ablations.report.statistics import (
  SAMPLED_PERMUTATIONS,
  mean,
  pooled_spread,
  rank_correlation,
  standard_deviation,
  ties_with_best,
)
from t5like.ablations.tables import STANDARD_DEVIATION, TABLES


def test_spread_is_pooled_over_recipes_with_several_seeds():
  # Squares 2 + 8 over (2 - 1) + (2 - 1) degrees of freedom; the single seed does not count.
  spread = pooled_spread([[1.0, 3.0], [10.0, 14.0], [99.0]])
  assert (spread.deviation, spread.degrees_of_freedom) == (pytest.approx(math.sqrt(5)), 2)
  assert standard_deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
  assert mean([0.1] * 10) == 0.1


@pytest.mark.parametrize("samples", [[], [[4.0]], [[4.0], [5.0]], [[4.0, 4.0], [5.0, 5.0, 5.0]]])
def test_an_unknown_spread_is_none(samples):
  assert pooled_spread(samples) is None
  assert standard_deviation([4.0]) is None


@pytest.mark.parametrize(
  "table, group, bold",
  [  # from Raffel et al. 2019
    (2, "glue", {"Encoder-decoder, denoising", "Enc-dec, shared, denoising"}),  # 83.28 - 2 x 0.235 is 82.81 exactly
    (2, "cnndm", {"Encoder-decoder, denoising"}),
    (7, "squad", {"2", "3", "5", "10"}),
    (7, "cnndm", {"3"}),
    (9, "squad", {"Full data set", "2^29 tokens"}),
  ],
)
def test_ties_are_what_the_paper_prints_in_bold(table, group, bold):
  scores = {row.name: row.paper[group] for row in TABLES[table].rows}
  assert ties_with_best(scores, STANDARD_DEVIATION[group]) == bold


def test_rounding_errors_decide_no_tie():
  assert ties_with_best({"a": 0.8, "b": 0.6, "c": 0.59}, 0.1) == {"a", "b"}  # 0.8 - 0.2 > 0.6 in floats


def test_rank_correlation_of_five_rows_by_hand():
  found = rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5])
  assert found.n == 5 and found.exact
  assert found.spearman == pytest.approx(1 - 6 * 4 / (5 * 24))  # squared differences of ranks: 4
  assert found.kendall == pytest.approx((8 - 2) / 10)  # concordant minus discordant pairs
  assert found.spearman_p == pytest.approx((1 + 4 + 3) / 120)  # permutations with squared differences of 0, 2 and 4
  assert found.kendall_p == pytest.approx((1 + 4 + 9) / 120)  # permutations with 0, 1 and 2 inversions


def test_rank_correlation_with_ties_by_hand():
  found = rank_correlation([1, 2, 2, 3], [1, 3, 2, 4])
  assert found.spearman == pytest.approx(4.5 / math.sqrt(4.5 * 5.0))
  assert found.kendall == pytest.approx(5 / math.sqrt(5 * 6))  # tau-b: a pair is tied on one side
  assert found.spearman_p == found.kendall_p == pytest.approx(2 / 24)  # the ends fixed, the middle either way


def test_exact_p_is_the_share_of_all_permutations():
  draw = np.random.default_rng(0)
  for values in (5, 50):  # with and without ties
    a, b = draw.integers(0, values, 6), draw.integers(0, values, 6)
    found = rank_correlation(a, b)
    pairs = list(itertools.combinations(range(6), 2))

    def concordance(other, a=a, pairs=pairs):
      return sum(np.sign(a[i] - a[j]) * np.sign(other[i] - other[j]) for i, j in pairs)

    orders = [np.array(order) for order in itertools.permutations(b)]
    above_rho = [ranks(a) @ ranks(order) >= ranks(a) @ ranks(b) - 1e-9 for order in orders]
    assert found.spearman_p == pytest.approx(np.mean(above_rho), abs=1e-12)
    assert found.kendall_p == pytest.approx(np.mean([concordance(o) >= concordance(b) for o in orders]), abs=1e-12)


def test_p_of_many_rows_is_sampled():
  n = 14
  found = rank_correlation(range(n), [*range(7, n), *range(7)])  # two blocks swapped: 49 of 91 pairs are inverted
  assert not found.exact and found.kendall == pytest.approx((42 - 49) / 91)
  # Kendall's statistic is nearly normal: mean 0, variance n(n-1)(2n+5)/18, here with its continuity correction.
  z = (-7 - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
  assert found.kendall_p == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)), abs=0.01)
  assert found == rank_correlation(range(n), [*range(7, n), *range(7)])


def test_many_rows_in_the_same_order():
  """Sums of products of ranks grow with the third power of the rows."""
  found = rank_correlation(range(60), range(60))
  assert found.spearman == found.kendall == pytest.approx(1.0)
  assert found.spearman_p == found.kendall_p == 1 / (SAMPLED_PERMUTATIONS + 1)


def test_equal_scores_or_two_rows_have_no_correlation():
  assert rank_correlation([1, 2], [1, 2]) is None
  flat = rank_correlation([1.0, 2.0, 3.0], [5.0, 5.0, 5.0])
  assert flat.n == 3 and flat.spearman is flat.kendall is flat.spearman_p is None
