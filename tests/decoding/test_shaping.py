"""The search for the largest entries of long rows, compared with one sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.decoding.shaping import largest


@pytest.mark.parametrize(("n", "k"), [(5, 5), (8193, 8), (10_001, 3)])
def test_largest_entries_and_their_order_in_ties(n, k):
  x = np.random.default_rng(0).integers(0, 9, (3, n)).astype(np.float32)  # many ties: the first index wins
  x[1] = -np.inf
  for got, expected in zip(largest(jnp.asarray(x), k), jax.lax.top_k(x, k), strict=True):
    np.testing.assert_array_equal(got, expected)
  order = np.argsort(-x[0], kind="stable")[:k]
  np.testing.assert_array_equal(largest(jnp.asarray(x), k)[1][0], order)
