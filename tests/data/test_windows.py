"""Windows of streams: row b of step s is the s-th window of stream b."""

import numpy as np
import pytest
from test_first_tokens import SPECIAL, corpus  # noqa: F401

from t5like import data
from t5like.errors import UserError
from t5like.objectives import CATALOGUE

LENGTHS = CATALOGUE["causal_lm"].lengths(6)


def test_rows_continue_those_of_the_step_before_and_cover_the_corpus(corpus):  # noqa: F811
  """200 tokens and 5 separators: 4 streams of 51 tokens, 8 windows of 6 each."""
  source = data.WindowRows(corpus, LENGTHS, SPECIAL, seed=3, streams=4)
  assert source.windows == (205 // 4 - 1) // 6 == 8 and source.rows_per_epoch == 32
  batches = data.Batches([data.PhaseRows(source, 4)])
  steps = [batches[step] for step in range(17)]
  for before, after in zip(steps[:7], steps[1:8], strict=True):
    np.testing.assert_array_equal(after["decoder_input_tokens"][:, 0], before["decoder_target_tokens"][:, -1])
  assert [int(step["decoder_continues"][0]) for step in steps] == [0, *[1] * 7] * 2 + [0]
  seen = np.concatenate([step["decoder_input_tokens"].ravel() for step in steps[:8]])
  text = seen[seen > 1]
  assert len(np.unique(text)) == len(text) and len(seen) == 4 * 8 * 6  # nothing twice in an epoch
  # Another epoch or seed starts elsewhere.
  other = data.WindowRows(corpus, LENGTHS, SPECIAL, seed=4, streams=4).rows(np.arange(4))
  for elsewhere in (steps[8], other):
    assert not np.array_equal(steps[0]["decoder_input_tokens"], elsewhere["decoder_input_tokens"])
  # The corpus is a circle: token 209 is followed by the separator, then by token 10.
  circle = np.concatenate([np.append(part, 1) for part in np.split(np.arange(10, 210), np.cumsum((7, 30, 5, 60)))])
  for step in steps:
    for row, targets in zip(step["decoder_input_tokens"], step["decoder_target_tokens"], strict=True):
      window = np.append(row, targets[-1])
      assert any(np.array_equal(np.roll(circle, -begin)[:7], window) for begin in range(205))


def test_a_short_corpus_is_refused(corpus):  # noqa: F811
  with pytest.raises(UserError, match="too short for 64 streams"):
    data.WindowRows(corpus, LENGTHS, SPECIAL, seed=3, streams=64)
