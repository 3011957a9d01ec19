"""XLNet's permutation language modeling: shares, spans, segments, and the mask of the authors' code."""

import dataclasses

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.objectives import CATALOGUE, Draws, Rows, SpecialTokens
from t5like.objectives.permutation import PermutationLM

CLS, SEP, STOP = 3, 4, 50
SPECIAL = SpecialTokens(vocab_size=1000, pad=0, eos=1, cls=CLS, sep=SEP, sentence_ends=(STOP,), cls_last=True)


def rows_of(count: int, length: int) -> Rows:
  tokens = np.random.default_rng(0).integers(100, 1000, (count, length)).astype(np.int32)
  tokens[:, 9::10] = STOP
  return Rows.full(tokens)


def draws(count: int, epoch: int = 0) -> Draws:
  return Draws.of(0, epoch, np.arange(count))


def original_mask(place: np.ndarray, targets: np.ndarray, functional: np.ndarray) -> np.ndarray:
  """Returns `perm_mask` of zihangdai/xlnet (data_utils._local_perm) for one window: 1 where i must not see j.

  `place` is the number of each token in the permutation.
  """
  given = ~targets & ~functional
  reverse = np.where(given, -1, place)
  own = np.where(targets, reverse, reverse + 1)
  return (own[:, None] <= reverse[None, :]) & ~given[None, :]


@pytest.mark.parametrize("memory", [0, 64])
def test_a_sixth_of_the_tokens_after_the_memory_is_predicted(memory):
  objective = dataclasses.replace(CATALOGUE["xlnet"], memory=memory)
  lengths = objective.lengths(512 + memory)
  rows = rows_of(200, lengths.raw)
  found = objective(rows, draws(200), SPECIAL)
  assert found.inputs.tokens is found.targets and found.inputs.tokens.shape == (200, 512 + memory)
  assert not found.weights[:, :memory].any()
  assert set(found.weights.sum(axis=1)) == {85}  # ceil(509 / 6): separators and <cls> are not text
  # A <sep> B <sep> <cls>: the text is complete, cut at a sentence end.
  for row in range(200):
    tokens, types = found.inputs.tokens[row], found.token_types[row]
    first, last = np.flatnonzero(tokens == SEP)
    assert tokens[first - 1] == STOP and last == len(tokens) - 2 and tokens[-1] == CLS
    assert types.tolist() == [0] * (first + 1) + [1] * (last - first) + [2] and first >= memory
    assert np.delete(tokens, [first, last, len(tokens) - 1]).tolist() == rows.tokens[row].tolist()
  # No place is favored, spans have up to five words (here: tokens), and longer ones touch.
  share = found.weights[:, memory:-2].mean(axis=0)
  assert abs(share[20:-20] - 1 / 6).max() < 5 * np.sqrt(1 / 6 * 5 / 6 / 200)
  edges = np.diff(np.pad(found.weights.astype(int), ((0, 0), (1, 1))), axis=1)
  assert 1.8 < found.weights.sum() / (edges == 1).sum() < 3.2  # mean of 1..5 with odds 1/n is 2.2
  again = objective(rows, draws(200, epoch=1), SPECIAL)
  assert (again.weights != found.weights).any() and (again.order != found.order).any()


def test_the_order_gives_the_mask_of_the_original():
  """In each window: the authors' mask. Windows before are seen completely, windows after not at all."""
  window, memory, count = 16, 5, 30
  objective = PermutationLM(window=window, memory=memory, share=0.3)
  found = objective(rows_of(count, objective.lengths(memory + 2 * window).raw), draws(count), SPECIAL)
  orders = set()
  for row in range(count):
    order, targets = found.order[row, memory:], found.weights[row, memory:]
    functional = np.isin(found.inputs.tokens[row, memory:], (SEP, CLS))
    assert not found.order[row, :memory].any()
    hidden = np.where(targets[:, None], order[None, :] >= order[:, None], order[None, :] > order[:, None])
    for number in (0, 1):
      part = slice(number * window, (number + 1) * window)
      place = np.argsort(np.argsort(order[part], kind="stable"))
      assert np.array_equal(hidden[part, part], original_mask(place, targets[part], functional[part]))
      orders.add(tuple(order[part][targets[part]] - order[part].min()))
    assert hidden[:window, window:].all() and not hidden[window:, :window].any()
    ordered = order[targets | functional]
    assert len(set(ordered)) == len(ordered)
  assert len(orders) > count  # at random


def test_invalid_settings_are_refused():
  with pytest.raises(UserError, match="window: 1"):
    PermutationLM(window=1)
  with pytest.raises(UserError, match="expected at least 72"):
    PermutationLM(memory=64).lengths(71)
  with pytest.raises(UserError, match="needs <cls> and <sep>"):
    PermutationLM().check(PermutationLM().lengths(16), dataclasses.replace(SPECIAL, cls=None))
