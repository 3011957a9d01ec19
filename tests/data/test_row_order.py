"""The order of rows in pools: every row once per epoch, random access, blocks from all over the corpus."""

import numpy as np
import pytest

from t5like.data.row_order import PooledOrder

SIZES = [(1000, 10, 7), (1003, 10, 7), (9, 10, 7), (70, 10, 7), (71, 1, 3)]


@pytest.mark.parametrize(("rows", "block", "blocks"), SIZES)
def test_an_epoch_has_every_row_once_and_a_pool_the_rows_of_its_blocks(rows, block, blocks):
  order = PooledOrder(block, blocks)
  numbers = np.arange(2 * rows)
  epochs, found = order.shuffled(numbers, rows, seed=3)
  assert epochs.tolist() == [0] * rows + [1] * rows
  first, second = found[:rows], found[rows:]
  assert sorted(first) == sorted(second) == list(range(rows)) and first.tolist() != second.tolist()
  pools = order.pools(numbers, rows)
  for pool in range(int(pools[-1]) + 1):
    spans = [range(a, b) for a, b in zip(*order.spans(pool, rows, seed=3), strict=True)]
    assert sorted(found[pools == pool]) == sorted(row for span in spans for row in span)


def test_the_blocks_and_the_order_of_a_pool_depend_on_seed_epoch_and_pool():
  order, rows = PooledOrder(10, 10), 300
  within = [order.shuffled(np.arange(2 * rows), rows, seed)[1].reshape(6, 100) % 10 for seed in (0, 1)]
  assert len({tuple(places) for places in np.concatenate(within).tolist()}) == 2 * 2 * 3
  blocks = [order.spans(pool, rows, seed)[0] for seed in (0, 1) for pool in range(6)]
  assert len({tuple(sorted(first)) for first in blocks}) == 2 * 2 * 3


def test_any_row_of_a_huge_corpus_is_found_at_once():
  rows = 10**12 // 568
  order = PooledOrder.of(568 * 2, 1 << 30)
  numbers = np.array([0, rows - 1, rows, 10**15])
  epochs, found = order.shuffled(numbers, rows, seed=0)
  assert epochs.tolist() == [0, 0, 1, 10**15 // rows] and (found < rows).all() and (found >= 0).all()
  assert [order.shuffled(numbers[i : i + 1], rows, 0)[1][0] for i in range(4)] == found.tolist()


def test_neighbors_in_a_batch_are_rarely_neighbors_in_the_corpus():
  """As rarely as one of 64 blocks is drawn twice in a row; and the blocks of a pool are spread over the corpus."""
  rows, order = 64 * 1000 * 20, PooledOrder(1000, 64)
  _, found = order.shuffled(np.arange(64_000), rows, seed=0)
  same_block = np.mean(found[1:] // 1000 == found[:-1] // 1000)
  assert abs(same_block - 1 / 64) < 0.003
  assert np.ptp(found) > 0.9 * rows and abs(np.mean(found) / rows - 0.5) < 0.15
