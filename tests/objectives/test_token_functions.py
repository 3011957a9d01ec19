"""The token functions of objectives, against published values of the original library (T5_FACTS, section 2)."""

import json
from pathlib import Path

import numpy as np
import pytest

from t5like.objectives import Ragged
from t5like.objectives.corruption import (
  drop_noise,
  first_spans,
  keep_noise,
  replace_spans,
  replace_tokens,
  spans_after_sentinels,
)
from t5like.objectives.span_corruption import SpanCorruption

ROWS = Ragged.full(np.arange(10, 16)[None])
MASK = np.array([[True, True, False, False, True, False]])
SENTINELS = np.arange(999, 899, -1, dtype=np.int32)


@pytest.mark.parametrize(
  ("function", "expected"),
  [
    (lambda: replace_tokens(ROWS, MASK, 999), [999, 999, 12, 13, 999, 15]),
    (lambda: replace_spans(ROWS, MASK, np.full(9, 999)), [999, 12, 13, 999, 15]),
    (lambda: replace_spans(ROWS, ~MASK, np.full(9, 999)), [10, 11, 999, 14, 999]),
    (lambda: replace_spans(ROWS, MASK, SENTINELS), [999, 12, 13, 998, 15]),
    (lambda: replace_spans(ROWS, ~MASK, SENTINELS), [10, 11, 999, 14, 998]),  # quirk 2: lags the inputs by one
    (lambda: drop_noise(ROWS, MASK), [12, 13, 15]),
    (lambda: keep_noise(ROWS, MASK), [10, 11, 14]),
    # By hand: each run after its sentinel in the inputs, then the next sentinel.
    (lambda: spans_after_sentinels(ROWS, MASK, SENTINELS), [999, 10, 11, 998, 14, 997]),
    (lambda: keep_noise(ROWS, first_spans(MASK, 1)), [10, 11]),
  ],
)
def test_published_values(function, expected):
  assert function().tokens.tolist() == [expected]


def test_rows_of_different_lengths_do_not_affect_each_other():
  # By hand; the second and third row are adjacent in memory, both with noise at the boundary.
  rows = Ragged.of(np.array([10, 11, 12, 20, 30, 31]), np.array([3, 1, 2]))
  mask = np.array([[False, True, True], [True, False, False], [True, False, False]])
  assert replace_spans(rows, mask, SENTINELS).tokens.tolist() == [[10, 999], [999, 0], [999, 31]]
  targets = spans_after_sentinels(rows, mask, SENTINELS)
  assert targets.tokens.tolist() == [[999, 11, 12, 998], [999, 20, 998, 0], [999, 30, 998, 0]]
  assert targets.lengths.tolist() == [4, 3, 3]


GOLDEN = json.loads((Path(__file__).parents[1] / "data/objectives/t5.json").read_text())
T5_SENTINELS = np.arange(32_099, -1, -1, dtype=np.int32)
SAME = np.full(64, 32_099, np.int32)
EQUIVALENTS = {
  "noise_token_to_sentinel": lambda rows, mask: replace_tokens(rows, mask, 32_099),
  "noise_span_to_sentinel": lambda rows, mask: replace_spans(rows, mask, SAME),
  "nonnoise_span_to_sentinel": lambda rows, mask: replace_spans(rows, ~mask, SAME),
  "noise_span_to_unique_sentinel": lambda rows, mask: replace_spans(rows, mask, T5_SENTINELS),
  "nonnoise_span_to_unique_sentinel": lambda rows, mask: replace_spans(rows, ~mask, T5_SENTINELS),
  "drop_noise_tokens": drop_noise,
  "drop_nonnoise_tokens": keep_noise,
}


@pytest.mark.parametrize("name", EQUIVALENTS)
def test_outputs_equal_the_original_librarys_on_random_masks(name):
  for case in GOLDEN["token_functions"]:
    rows, mask = Ragged.full(np.array([case["tokens"]])), np.array([case["mask"]], bool)
    assert EQUIVALENTS[name](rows, mask).tokens.tolist() == [case[name]]


def test_lengths_equal_the_original_librarys():
  for inputs, density, mean, raw, targets in GOLDEN["lengths"]:
    lengths = SpanCorruption(density, mean, "t5").lengths(inputs)
    assert (lengths.raw, lengths.targets) == (raw, targets), (inputs, density, mean)
