"""Forbidden sequences and repetitions; the search for the largest entries of long rows, compared with one sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.decoding.shaping import forbid_repeated_ngrams, forbid_sequences, largest


@pytest.mark.parametrize(("n", "k"), [(5, 5), (8193, 8), (10_001, 3)])
def test_largest_entries_and_their_order_in_ties(n, k):
  x = np.random.default_rng(0).integers(0, 9, (3, n)).astype(np.float32)  # many ties: the first index wins
  x[1] = -np.inf
  x[2, n // 2] = 9.0  # the largest of a row is not in the first part with ties
  for got, expected in zip(largest(jnp.asarray(x), k), jax.lax.top_k(x, k), strict=True):
    np.testing.assert_array_equal(got, expected)
  order = np.argsort(-x[0], kind="stable")[:k]
  np.testing.assert_array_equal(largest(jnp.asarray(x), k)[1][0], order)


def test_sequences_are_forbidden_where_their_beginning_was_generated():
  """Compared with transformers' rule, token by token: padding before the tokens matches nothing."""
  rng = np.random.default_rng(0)
  sequences = [(3,), (1, 2), (2, 2), (0, 1, 2), (4, 4, 4, 0), (1,)]
  tokens = np.concatenate([np.full((64, 2), -1), rng.integers(0, 5, (64, 6))], axis=1).astype(np.int32)
  for length in range(2, 9):
    found = forbid_sequences(jnp.zeros((64, 5)), jnp.asarray(tokens), jnp.int32(length), sequences)
    for row, logits in zip(tokens.tolist(), np.asarray(found), strict=True):
      seen = [-1, -1, *row[:length]]
      expected = {s[-1] for s in sequences if len(s) == 1 or seen[len(seen) - len(s) + 1 :] == list(s[:-1])}
      assert set(np.flatnonzero(np.isinf(logits))) == expected


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tokens_that_would_repeat_an_ngram_are_forbidden(n):
  """As transformers' NoRepeatNGramLogitsProcessor, row by row; padding in front is no part of an n-gram."""
  generator = np.random.default_rng(n)
  rows, most, vocab = 16, 12, 4
  tokens = generator.integers(0, vocab, (rows, most)).astype(np.int32)
  padding = generator.integers(0, 4, rows)
  tokens[np.arange(most)[None, :] < padding[:, None]] = -1
  for length in range(most + 1):
    logits = np.asarray(forbid_repeated_ngrams(jnp.zeros((rows, vocab)), jnp.asarray(tokens), jnp.int32(length), n))
    for row in range(rows):
      own = [token for token in tokens[row, :length].tolist() if token >= 0]
      newest = own[len(own) - n + 1 :] if len(own) >= n - 1 else None
      seen = {own[i + n - 1] for i in range(len(own) - n + 1) if own[i : i + n - 1] == newest}
      assert set(np.flatnonzero(logits[row] < 0)) == seen, (length, row)
