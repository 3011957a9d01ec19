"""Packing keeps every example and wastes little space; mixtures keep their rates."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5like.data.mixing import mixture_rows
from t5like.data.packing import plan_packing


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=200), st.integers(0, 9))
def test_every_epoch_contains_every_example_once_and_no_row_overflows(lengths, epoch):
  lengths, room = np.array(lengths), np.array([20, 9])
  plan = plan_packing(lengths, room)
  examples, row = plan.fill(np.arange(plan.rows), np.full(plan.rows, epoch), seed=5)
  assert sorted(examples.tolist()) == list(range(len(lengths)))
  filled = np.zeros((plan.rows, 2), int)
  np.add.at(filled, row, lengths[examples])
  assert np.all(filled <= room) and np.all(filled > 0)
  assert plan.rows >= (lengths.sum(axis=0) / room).max()
  # A single row can be read.
  alone, _ = plan.fill(np.array([plan.rows - 1]), np.array([epoch]), seed=5)
  assert alone.tolist() == examples[row == plan.rows - 1].tolist()


def test_every_epoch_and_seed_packs_examples_with_others():
  """Examples of two lengths, each permuted with a key of its own."""
  plan = plan_packing(np.repeat([[12, 4], [8, 5]], 100, axis=0), np.array([20, 9]))
  filled = [plan.fill(np.arange(100), np.full(100, epoch), seed)[0] for epoch, seed in ((0, 5), (1, 5), (0, 6))]
  pairs = [{tuple(sorted(row)) for row in examples.reshape(100, 2).tolist()} for examples in filled]
  assert all(len(one & other) < 10 for one, other in itertools.combinations(pairs, 2))


@pytest.mark.parametrize(
  ("inputs", "targets"),
  [
    (
      lambda rng: np.clip(rng.normal(190, 70, 20_000), 40, 512),
      lambda rng: np.clip(rng.geometric(0.25, 20_000), 2, 60),
    ),
    (lambda rng: np.clip(rng.lognormal(2.6, 0.6, 20_000) + 6, 3, 512), lambda rng: np.full(20_000, 2)),
  ],
  ids=["like SQuAD: two or three per row", "like SST-2: two dozen per row, limited by targets"],
)
def test_rows_are_at_least_95_percent_full(inputs, targets):
  rng = np.random.default_rng(0)
  lengths = np.stack([inputs(rng), targets(rng)], axis=1).astype(int)
  plan = plan_packing(lengths, np.array([512, 62]))
  assert lengths[:, 0].sum() / (plan.rows * 512) >= 0.95


def test_an_example_longer_than_a_row_is_refused():
  with pytest.raises(ValueError, match="longer than a row"):
    plan_packing(np.array([[21, 1]]), np.array([20, 9]))


# GLUE's training sizes (T5_FACTS, section 4).
GLUE = [8551, 67349, 3668, 363849, 5749, 392702, 104743, 2490]


@pytest.mark.parametrize("rates", [GLUE, [1, 1], [0.7, 0.2, 0.1], [5], [0, 1, 0]])
@pytest.mark.parametrize("start", [0, 10**12])
def test_counts_match_the_rates_and_each_source_is_read_in_order(rates, start):
  count = 100_000
  task, number = mixture_rows(np.arange(start, start + count), rates)
  counts = np.bincount(task, minlength=len(rates))
  expected = np.array(rates) / sum(rates) * count
  assert np.all(np.abs(counts - expected) <= np.maximum(0.01 * expected, 2 * len(rates)))
  for index in range(len(rates)):
    own = number[task == index]
    assert np.array_equal(own, np.arange(own[0], own[0] + len(own)) if len(own) else own)


def test_a_mixture_has_random_access_to_rows():
  task, number = mixture_rows(np.arange(1000), GLUE)
  some = np.array([999, 3, 500])
  assert [a.tolist() for a in mixture_rows(some, GLUE)] == [task[some].tolist(), number[some].tolist()]
  with pytest.raises(ValueError, match="not all 0"):
    mixture_rows(np.arange(3), [0, 0])
