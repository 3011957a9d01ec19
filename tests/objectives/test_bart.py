"""BART's five kinds of noise: which tokens are kept and hidden, and how many."""

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.objectives import CATALOGUE, Draws, Rows, SpecialTokens
from t5like.objectives.bart import Bart

MASK, STOP = 3, 5
SPECIAL = SpecialTokens(vocab_size=5000, pad=0, eos=1, mask=MASK, sentence_ends=(STOP,))


def rows_of(count, length):
  tokens = np.arange(10, 10 + length, dtype=np.int32)[None].repeat(count, axis=0)
  tokens[:, 6::7] = STOP
  return Rows.full(tokens)


def apply(objective, rows):
  objective = CATALOGUE[objective] if isinstance(objective, str) else objective
  result = objective(rows, Draws.of(0, 0, np.arange(len(rows.tokens))), SPECIAL)
  assert np.array_equal(result.targets.tokens, rows.tokens)  # always the complete text
  return result.inputs


def shown(inputs, row):
  return inputs.tokens[row, : inputs.lengths[row]].tolist()


def test_infilling_hides_30_percent_in_spans_of_poisson_3():
  rows = rows_of(2000, 511)
  inputs = apply("bart_text_infilling", rows)
  masks = (inputs.tokens == MASK).sum(axis=1)
  text = inputs.lengths - masks
  assert np.all(text == 511 - 153)  # round(511 * 0.3)
  # Poisson(3) spans until 153 tokens are hidden: 153 / 3 = 51 masks plus half a span on average; 1 in 20 is empty.
  assert abs(masks.mean() - 51.5) < 1.0
  for row in range(50):  # the remaining text keeps its order
    left = [t for t in shown(inputs, row) if t not in (MASK, STOP)]
    assert left == sorted(left)
  # A span of length 0: both its neighbors are shown and adjacent in the text.
  row = inputs.tokens[:, :300]
  empty = (row[:, 1:-1] == MASK) & (row[:, 2:] == row[:, :-2] + 1) & (row[:, :-2] > 9)
  assert 1.0 < empty.sum() / 2000 < 3.0  # 0.05 * 51.5 = 2.6, not counting neighbors of full stops


def test_more_empty_spans_than_tokens_are_one_before_each_token():
  inputs = apply(Bart(noise_density=0.5, mean_span_length=0.3, permute_sentences=False), rows_of(20, 40))
  shown_tokens = inputs.tokens > MASK
  assert np.all(shown_tokens.sum(axis=1) == 20) and not shown_tokens[:, 0].any()
  assert not np.any(shown_tokens[:, 1:] & shown_tokens[:, :-1])


def test_token_masking_and_deletion():
  rows = rows_of(50, 100)
  masked, deleted = apply("bart_token_masking", rows), apply("bart_token_deletion", rows)
  assert np.all((masked.tokens == MASK).sum(axis=1) == 15) and np.all(masked.lengths == 100)
  assert np.all(deleted.lengths == 85) and not (deleted.tokens == MASK).any()
  changed = masked.tokens != rows.tokens
  assert np.all(masked.tokens[changed] == MASK)


def test_sentences_are_permuted_as_units():
  rows = rows_of(600, 31)  # four sentences of 7 and one of 3 without a full stop
  inputs = apply("bart_sentence_permutation", rows)
  sentences = [rows.tokens[0, i : i + 7].tolist() for i in range(0, 31, 7)]
  orders = set()
  for row in range(600):
    left, order = shown(inputs, row), []
    while left:
      number = next(i for i, s in enumerate(sentences) if left[: len(s)] == s)
      order.append(number)
      left = left[len(sentences[number]) :]
    assert sorted(order) == [0, 1, 2, 3, 4]
    orders.add(tuple(order))
  assert len(orders) > 115  # of 5! = 120


def test_rotation_starts_at_any_token():
  rows = rows_of(500, 20)
  inputs = apply("bart_document_rotation", rows)
  text = rows.tokens[0].tolist()
  rotations = [text[i:] + text[:i] for i in range(20)]
  assert {rotations.index(shown(inputs, row)) for row in range(500)} == set(range(20))


def test_the_combination_permutes_and_infills():
  inputs = apply("bart", rows_of(20, 200))
  left = [t for t in shown(inputs, 0) if t not in (MASK, STOP)]
  assert left != sorted(left) and MASK in shown(inputs, 0)


def test_invalid_settings_and_vocabularies_are_refused():
  with pytest.raises(UserError, match="unknown BART noise: 'infil'") as error:
    Bart(noise="infil")
  assert "nearest  infill" in str(error.value)
  with pytest.raises(UserError, match="the vocabulary has no sentence ends"):
    Bart().check(Bart().lengths(64), SpecialTokens(vocab_size=9, pad=0, eos=1, mask=3))
