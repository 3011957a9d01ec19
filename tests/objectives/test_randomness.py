"""Random numbers are a pure function of (seed, epoch, row, purpose)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5like.objectives.randomness import Draws, combine, mix, permute


def test_mix_is_splitmix64():
  # The first outputs of SplitMix64 seeded with 0, from the reference implementation.
  golden = np.uint64(0x9E3779B97F4A7C15)
  outputs = mix(np.arange(1, 4, dtype=np.uint64) * golden)
  assert [int(x) for x in outputs] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_the_numbers_of_a_row_do_not_depend_on_the_batch():
  rows = np.arange(100)
  everything = Draws.of(1, 2, rows).bits("x", 7)
  some = Draws.of(1, 2, rows[[42, 3]]).bits("x", 7)
  np.testing.assert_array_equal(some, everything[[42, 3]])


@pytest.mark.parametrize("other", [dict(seed=2), dict(epoch=1), dict(row=1), dict(purpose="y")])
def test_each_counter_matters(other):
  def bits(seed=1, epoch=0, row=0, purpose="x"):
    return Draws.of(seed, epoch, np.array([row])).bits(purpose, 64)

  assert not np.any(bits() == bits(**other))


def test_uniform_numbers_are_uniform():
  values = Draws.of(0, 0, np.arange(1000)).uniform("u", 100).ravel()
  assert values.min() >= 0 and values.max() < 1
  counts, _ = np.histogram(values, bins=20, range=(0, 1))
  # Chi-square with 19 degrees of freedom: 43.8 is exceeded once in a thousand.
  assert np.sum((counts - 5000) ** 2 / 5000) < 43.8


@given(st.lists(st.integers(0, 300), min_size=1, max_size=5), st.data())
def test_subsets_have_the_requested_size_and_do_not_depend_on_the_batch(sizes, data):
  chosen = [data.draw(st.integers(0, size)) for size in sizes]
  draws = Draws.of(0, 0, np.arange(len(sizes)))
  subsets = draws.subsets("s", np.array(sizes), np.array(chosen))
  assert subsets.sum(axis=1).tolist() == chosen
  for row, size in enumerate(sizes):
    assert not subsets[row, size:].any()
    alone = Draws.of(0, 0, np.array([row])).subsets("s", size, chosen[row])
    np.testing.assert_array_equal(alone[0], subsets[row, :size])


def test_every_subset_is_equally_likely():
  subsets = Draws.of(0, 0, np.arange(60_000)).subsets("s", 4, 2)
  _, counts = np.unique(subsets, axis=0, return_counts=True)
  assert len(counts) == 6  # 4 choose 2
  assert np.sum((counts - 10_000) ** 2 / 10_000) < 20.5  # 5 degrees of freedom, p = 0.001


def test_every_order_is_equally_likely_and_leaves_padding_in_place():
  orders = Draws.of(0, 0, np.arange(60_000)).orders("o", np.full(60_000, 3), 5)
  _, counts = np.unique(orders, axis=0, return_counts=True)
  assert len(counts) == 6 and np.all(orders[:, 3:] == [3, 4])
  assert np.sum((counts - 10_000) ** 2 / 10_000) < 20.5


def test_integers_are_below_their_bound_and_uniform():
  values = Draws.of(0, 0, np.arange(60_000)).integers("i", 2, np.array([[6, 1]]))
  assert not values[:, 1].any()
  counts = np.bincount(values[:, 0], minlength=6)
  assert len(counts) == 6 and np.sum((counts - 10_000) ** 2 / 10_000) < 20.5


@given(st.integers(1, 2000), st.integers(0, 2**32))
def test_permute_visits_every_position_once(size, key):
  assert sorted(permute(np.arange(size), size, key)) == list(range(size))


def test_permute_supports_single_positions_and_mixed_keys():
  keys = combine(5, np.array([0, 0, 1]))
  together = permute(np.array([3, 9, 3]), 10, keys)
  for i, position in enumerate([3, 9, 3]):
    assert permute(np.array([position]), 10, keys[i])[0] == together[i]
  with pytest.raises(ValueError, match="out of range"):
    permute(np.array([10]), 10, 0)
