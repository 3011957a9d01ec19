"""One or two texts in a row, truncated as in Hugging Face."""

import itertools

import numpy as np
import pytest

from t5like.objectives.ragged import Ragged
from t5like.objectives.segments import PairForm, join_segments, join_words

CLS, SEP = 101, 102


def rows(*lengths):
  return Ragged.of(np.concatenate([200 + np.arange(n) for n in lengths]), np.array(lengths, np.int64))


def test_a_pair_of_texts():
  joined = join_segments(rows(2, 1), rows(1, 3), 8, CLS, SEP)
  assert joined.tokens.tolist() == [[CLS, 200, 201, SEP, 200, SEP, 0, 0], [CLS, 200, SEP, 200, 201, 202, SEP, 0]]
  assert joined.token_types.tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 0]]
  assert joined.lengths.tolist() == [6, 7]


def test_one_text():
  joined = join_segments(rows(2, 0, 9), None, 5, CLS, SEP)
  assert joined.tokens.tolist() == [[CLS, 200, 201, SEP, 0], [CLS, SEP, 0, 0, 0], [CLS, 200, 201, 202, SEP]]
  assert not joined.token_types.any() and joined.lengths.tolist() == [4, 2, 5]


def test_rows_without_an_end():
  plain = PairForm(None, SEP, separators=0, typed=False, closed=False)
  assert plain.join(rows(2, 5), None, 4).tokens.tolist() == [[200, 201, 0, 0], [200, 201, 202, 203]]
  assert plain.join(rows(2, 5), None, 4).lengths.tolist() == [2, 4] and plain.around == 0
  assert plain.join(rows(2), rows(1), 4).tokens.tolist() == [[200, 201, 200, 0]]
  opened = PairForm(CLS, CLS, typed=False, closed=False)
  joined = opened.join(rows(2, 4), rows(1, 4), 6)
  assert joined.tokens.tolist() == [[CLS, 200, 201, CLS, 200, 0], [CLS, 200, 201, CLS, 200, 201]]
  assert joined.lengths.tolist() == [5, 6] and opened.around == 1


# (first, second, length) -> the lengths of both after truncation="longest_first" in transformers' BertTokenizer.
HUGGING_FACE = {
  (3, 3, 8): (2, 3), (4, 3, 8): (3, 2), (3, 4, 8): (2, 3), (9, 9, 8): (2, 3), (9, 8, 8): (3, 2), (9, 9, 9): (3, 3),
  (1, 9, 8): (1, 4), (9, 1, 8): (4, 1), (2, 3, 8): (2, 3), (9, 2, 8): (3, 2), (2, 9, 8): (2, 3), (5, 7, 20): (5, 7),
  (11, 3, 11): (5, 3), (3, 11, 11): (3, 5), (7, 7, 4): (0, 1), (8, 7, 4): (1, 0), (7, 7, 3): (0, 0),
}  # fmt: skip


def test_truncation_equals_hugging_faces():
  for (first, second, length), kept in HUGGING_FACE.items():
    joined = join_segments(rows(first), rows(second), length, CLS, SEP)
    expected = [CLS, *range(200, 200 + kept[0]), SEP, *range(200, 200 + kept[1]), SEP]
    assert joined.tokens[0].tolist() == expected + [0] * (length - len(expected)), (first, second, length)


def test_rows_are_truncated_independently():
  pairs = list(itertools.product(range(8), repeat=2))
  together = join_segments(rows(*(a for a, _ in pairs)), rows(*(b for _, b in pairs)), 9, CLS, SEP)
  for number, (a, b) in enumerate(pairs):
    alone = join_segments(rows(a), rows(b), 9, CLS, SEP)
    assert together.tokens[number].tolist() == alone.tokens[0].tolist()
    assert together.token_types[number].tolist() == alone.token_types[0].tolist()
    kept = together.lengths[number] - 3
    assert kept == min(a + b, 6)  # texts that fit are not truncated


def test_a_length_without_room_for_special_tokens_is_refused():
  with pytest.raises(ValueError, match="invalid length: 2"):
    join_segments(rows(1), rows(1), 2, CLS, SEP)


@pytest.mark.parametrize("cls", [101, None])  # T5 and GPT have no [CLS]
def test_words_of_a_row_by_hand(cls):
  """Three words of 2, 0 and 1 pieces with tags 7, 8, 9; then two of 1 and 3, of which the row has room for 3 pieces."""
  pieces = Ragged(np.array([[11, 12, 13, 0], [21, 22, 23, 24]]), np.array([3, 4]))
  sizes = Ragged(np.array([[2, 0, 1], [1, 3, 0]]), np.array([3, 2]))
  tags = Ragged(np.array([[7, 8, 9], [5, 6, 0]]), np.array([3, 2]))
  head = [] if cls is None else [cls]
  rows = join_words(pieces, sizes, tags, 4 + len(head), PairForm(cls, 102))
  none = [0] * len(head)
  assert rows.tokens.tolist() == [head + [11, 12, 13, 102], head + [21, 22, 23, 102]]
  assert rows.targets.tolist() == [none + [7, 0, 9, 0], none + [5, 6, 0, 0]]
  assert rows.word_numbers[:, len(head) :].tolist() == [[0, -1, 2, -1], [0, 1, -1, -1]]
  assert rows.lengths.tolist() == [4 + len(head)] * 2
