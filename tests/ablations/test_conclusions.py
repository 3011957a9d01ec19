"""Verdicts on a conclusion, from counts and comparisons that are written by hand."""

import pytest
from report_sweeps import synthetic_result

from t5like.ablations.report.comparison import compare
from t5like.ablations.report.conclusions import CheckedConclusion, Conclusion, Count, PairEvidence, check_conclusions
from t5like.ablations.report.data import ReportData
from t5like.ablations.tables import TABLES

CLAIM = Conclusion(2, "a beats b", above=(("a", "b"),))


@pytest.mark.parametrize(
  ("count", "verdict"),
  [
    (Count(0, 0), "not run"),
    (Count(3, 4), "undecided"),
    (Count(3, 4, holds_clearly=1), "reproduced"),
    (Count(7, 10, holds_clearly=1), "partly reproduced"),
    (Count(5, 10, holds_clearly=1), "partly reproduced"),
    (Count(4, 10, holds_clearly=1), "not reproduced"),
    (Count(9, 10, holds_clearly=8, fails_clearly=1), "partly reproduced"),
  ],
)
def test_verdicts(count, verdict):
  assert CheckedConclusion(CLAIM, count, Count(1, 1)).verdict == verdict


def test_the_open_comparison_that_needs_the_fewest_seeds_is_first():
  pairs = [PairEvidence("glue", "a", str(n), 1.0, 1.0, n, clear=n == 2) for n in (9, 2, 5)]
  assert [pair.seeds for pair in CheckedConclusion(CLAIM, Count(0, 3), Count(3, 3), pairs).open_pairs] == [5, 9]


@pytest.mark.parametrize(("replaced", "holds"), [(19.0, 2), (13.0, 0), (25.0, 2)])
def test_no_worse_than_allows_a_difference_within_the_band(replaced, holds):
  """Replaced spans against BERT- and MASS-style at 20, when a run has a standard deviation of 1."""
  scores = {recipe: (19.0, 21.0) for recipe in TABLES[5].recipes}
  scores["encoder_decoder/iid_replace_spans"] = (replaced - 1, replaced + 1)
  scores["encoder_decoder/iid_drop_tokens"] = (21.0, 19.0)  # seeds are paired: another order is the spread
  results = [
    synthetic_result(recipe, seed, scores={"squad": score})
    for recipe, seeds in scores.items()
    for seed, score in enumerate(seeds)
  ]
  data = ReportData({"tables": [5], "scale": "mini", "seeds": 2}, results, [])
  checked = check_conclusions(compare(data))
  (found,) = (each for each in checked if each.conclusion.text.startswith("Replacing spans"))
  assert (found.ours.holds, found.ours.of) == (holds, 2)
