"""Statistics of paired seeds, computed by hand; and the measures of the order of rows."""

import math

import numpy as np
import pytest
from report_sweeps import synthetic_result

from t5like.ablations.report.measures import ALL, measure_all
from t5like.ablations.report.pairing import fit_pairs, seeds_to_decide, spearman_interval
from t5like.ablations.tables import TABLES

RECIPES = [row.recipe for row in TABLES[4].rows]  # prefix LM, BERT-style, deshuffling


def test_what_a_seed_adds_to_every_recipe_is_no_noise():
  # Seed 1 is 10 better everywhere; the residuals are +-1 in two of three recipes.
  fit = fit_pairs({"a": {0: 0.0, 1: 10.0}, "b": {0: 6.0, 1: 14.0}, "c": {0: 4.0, 1: 16.0}})
  assert fit.spread.degrees_of_freedom == 6 - 3 - 1
  assert fit.spread.deviation == pytest.approx(math.sqrt(4 * 1.0 / 2))
  # Residuals are drawn again with the variance of a run, not with that of a fit.
  assert np.mean(fit.residuals**2) == pytest.approx(fit.spread.deviation**2)


def test_runs_with_one_seed_do_not_count_and_one_recipe_has_its_plain_deviation():
  assert fit_pairs({"a": {0: 1.0}, "b": {0: 5.0}}).spread is None
  fit = fit_pairs({"a": {0: 1.0, 1: 3.0}, "b": {0: 5.0}})
  assert (fit.spread.deviation, fit.spread.degrees_of_freedom) == (pytest.approx(math.sqrt(2)), 1)
  assert fit_pairs({"a": {0: 1.0, 1: 2.0}, "b": {0: 3.0, 1: 4.0}}).spread is None  # no residuals at all


def test_the_interval_of_a_rank_correlation_follows_the_noise():
  paper, means, seeds = [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0], [3, 3, 3, 3]
  assert spearman_interval(means, seeds, paper, np.array([-1.0, 1.0])) == (1.0, 1.0)
  low, high = spearman_interval(means, seeds, paper, np.array([-12.0, 12.0]))
  assert low < 0.9 and high == 1.0
  fewer = spearman_interval(means, [1, 1, 1, 1], paper, np.array([-12.0, 12.0]))
  assert fewer[0] < low  # a mean of fewer seeds is noisier
  assert spearman_interval(means[:2], seeds[:2], paper[:2], np.array([1.0])) is None
  assert spearman_interval(means, seeds, paper, np.zeros(0)) is None


def test_an_interval_leaves_out_the_same_share_on_both_sides():
  """The first two of three rows are swapped, which makes rho 1/2, by the noise +1 and -1: in 1/4 of all draws."""
  found = [spearman_interval([0, 1, 10], [1, 1, 1], [1, 2, 3], np.array([-1.0, 1.0]), level) for level in (0.6, 0.4)]
  assert found == [(pytest.approx(0.5), 1.0), (1.0, 1.0)]


def test_seeds_to_decide_a_difference():
  """Two standard errors of a difference of means of n runs are 2 s sqrt(2 / n)."""
  for difference, spread in ((1.0, 0.5), (0.3, 1.0), (-2.0, 3.0)):
    n = seeds_to_decide(difference, spread)
    assert 2 * spread * math.sqrt(2 / n) <= abs(difference) < 2 * spread * math.sqrt(2 / max(n - 1, 1e-9))


def run(recipe, seed, em, f1, loss, stsb, snli):
  tasks = {
    "squad": {"em": em, "f1": f1, "best_step": 1},
    "glue_stsb": {"pearson_corrcoef": stsb, "spearman_corrcoef": stsb, "best_step": 1},
    "snli": {"accuracy": snli, "best_step": 1},
  }
  return synthetic_result(recipe, seed, tasks=tasks, losses={"squad": loss}, scores={"glue": stsb, "squad": em})


def test_measures_of_the_order_of_rows():
  prefix, bert, deshuffling = RECIPES
  rows = {prefix: (20, 30, 2.0, 50, 60), bert: (30, 40, 1.5, 60, 58), deshuffling: (25, 25, 2.5, 20, 40)}
  results = [run(recipe, seed, *values) for recipe, values in rows.items() for seed in (0, 1)]
  found = {measure.name: measure for measure in measure_all(results, [TABLES[4]])}
  # The paper: BERT-style, prefix LM, deshuffling. Exact match has the last two swapped.
  of = {name: measure.agreements[4].correlation.spearman for name, measure in found.items()}
  assert of["SQuAD exact match"] == pytest.approx(0.5) and found["SQuAD exact match"].agreements[4].same == 2
  assert of["SQuAD F1"] == of["SQuAD loss of true answers"] == of["GLUE mean"] == pytest.approx(1.0)
  assert found["SQuAD F1"].agreements[4].clear == found["SQuAD F1"].agreements[4].same == 3
  assert found["SQuAD F1"].agreements[ALL].clear == 3
  # (50 - 43.3) / 17.0 and (60 - 52.7) / 9.0, of all runs.
  stsb, snli = np.array([50, 60, 20]), np.array([60, 58, 40])
  z = ((stsb - stsb.mean()) / stsb.std() + (snli - snli.mean()) / snli.std()) / 2
  assert [found["GLUE and NLI, standardized"].scores[r][0] for r in RECIPES] == pytest.approx(list(z))


def test_a_difference_is_clearly_reversed_beyond_two_standard_deviations():
  prefix, bert, deshuffling = RECIPES
  for gap, expected in ((2.0, 0), (9.0, 1)):  # deshuffling is best, by less and by more than the band
    em = {prefix: (20, 22), bert: (40, 40), deshuffling: (40 + gap, 38 + gap)}
    results = [run(r, s, em[r][s], em[r][s], 1.0, 50, 60) for r in RECIPES for s in (0, 1)]
    exact = next(m for m in measure_all(results, [TABLES[4]]) if m.name == "SQuAD exact match").agreements[4]
    assert exact.clear == 3 and exact.same == 1
    assert exact.reversed_clearly == 1 + expected  # prefix LM is far below deshuffling in both cases


def test_a_recipe_in_two_tables_has_the_score_of_the_first_one_overall():
  """The paper's SQuAD of a prefix language model: 76.02 in Table 2, 77.99 in Table 4; 76.35 with shared parameters."""
  recipes = ("encoder_decoder/prefix_lm", "shared/prefix_lm")
  results = [run(recipe, 0, em, 30, 2.0, 50, 60) for recipe, em in zip(recipes, (30, 20), strict=True)]
  exact = next(m for m in measure_all(results, [TABLES[2], TABLES[4]]) if m.name == "SQuAD exact match")
  assert exact.agreements[2].clear == exact.agreements[ALL].clear == 0  # the band is 0.83
