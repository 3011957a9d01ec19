"""The tokens that sampling may draw, by hand, and their frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.decoding import DecodeSettings, decode
from t5like.decoding.shaping import filter_logits, forbid, penalize_repetition

# Probabilities 0.4, 0.3, 0.15, 0.1, 0.05, shuffled.
PROBABILITIES = np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32)
LOGITS = np.log(PROBABILITIES) + 3.0


def allowed(**limits) -> list[int]:
  return np.flatnonzero(np.isfinite(filter_logits(jnp.asarray(LOGITS)[None], **limits)[0])).tolist()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("limits", "expected"),
  [
    (dict(top_k=2, top_p=0.57), [1]),
    (dict(), [0, 1, 2, 3, 4]),
    (dict(top_k=1), [1]),
    (dict(top_k=3), [1, 3, 4]),
    (dict(top_k=99), [0, 1, 2, 3, 4]),
    (dict(top_p=0.39), [1]),
    (dict(top_p=0.41), [1, 3]),  # 0.4 is not enough, with 0.3 it is
    (dict(top_p=0.84), [1, 3, 4]),
    (dict(top_p=1e-6), [1]),
    (dict(top_k=2, top_p=0.6), [1, 3]),  # of two tokens the first has 0.4 / 0.7 = 0.571
    (dict(min_p=0.3), [1, 3, 4]),  # 0.3 * 0.4 = 0.12
    (dict(min_p=0.8), [1]),
    (dict(top_k=4, min_p=0.26), [1, 3, 4]),
  ],
)
def test_filters_keep_the_expected_tokens(limits, expected):
  assert allowed(**limits) == expected


def test_a_top_p_that_is_reached_exactly_needs_no_further_token():
  """Probabilities 1/2, 1/4, 1/8, 1/8, whose sums have no rounding."""
  logits = jnp.log(jnp.array([[0.5, 0.25, 0.125, 0.125]]))
  for top_p, count in ((0.5, 1), (0.51, 2), (0.75, 2), (0.76, 4), (0.25, 1)):  # the last two are equal
    assert np.isfinite(filter_logits(logits, top_p=top_p)).sum() == count


def test_min_p_is_relative_to_the_likeliest_token_and_combines_with_other_filters():
  logits = jnp.log(jnp.array([[0.5, 0.25, 0.125, 0.0625, 0.0625]]))
  for limits, count in ((dict(min_p=0.24), 3), (dict(top_k=2, min_p=0.1), 2), (dict(top_p=0.8, min_p=0.4), 2)):
    assert np.isfinite(filter_logits(logits, **limits)).sum() == count
  allowed = filter_logits(logits, top_k=2)
  np.testing.assert_array_equal(allowed[0, :2], logits[0, :2])  # logits that are kept do not change


def test_tokens_with_equal_logits_are_kept_together():
  logits = jnp.array([[1.0, 2.0, 1.0, 0.0]])
  assert np.isfinite(filter_logits(logits, top_k=2)).tolist() == [[True, True, True, False]]


def test_repetition_penalty_and_forbidden_tokens():
  logits = jnp.array([[2.0, -2.0, 4.0, 1.0]])
  out = penalize_repetition(logits, jnp.array([[1, 2, 2, -1]]), 2.0)
  assert out.tolist() == [[2.0, -4.0, 2.0, 1.0]]
  both = forbid(jnp.zeros((2, 3)), 1, jnp.array([True, False]))
  assert np.isneginf(both).tolist() == [[False, True, False], [False, False, False]]


def draw(rows: int, seed: int = 0, row_ids=None, other_seed=None, **settings) -> np.ndarray:
  """Samples three tokens per row, [rows * n_best, 3]; logits are shifted by the last token."""
  settings = DecodeSettings(method="sample", max_length=3, seed=seed, **settings)

  def step(tokens, cache):
    shifts = (jnp.arange(5)[None, :] - tokens[:, None]) % 5
    return jnp.asarray(LOGITS)[shifts], cache

  ids = None if row_ids is None else jnp.asarray(row_ids)
  out = jax.jit(lambda first: decode(step, (), first, settings, eos_id=None, row_ids=ids, seed=other_seed))(
    jnp.zeros(rows, jnp.int32)
  )
  return np.asarray(out.tokens).reshape(-1, 3)


CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}  # p = 0.001, by degrees of freedom


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("settings", "weights"),
  [
    (dict(temperature=2.0, top_k=3), PROBABILITIES**0.5 * (PROBABILITIES > 0.12)),
    (dict(), PROBABILITIES),
    (dict(temperature=0.5), PROBABILITIES**2),
    (dict(top_p=0.41), PROBABILITIES * (PROBABILITIES > 0.2)),
    (dict(top_k=4, top_p=0.9, min_p=0.2), PROBABILITIES * (PROBABILITIES > 0.09)),
  ],
)
def test_samples_follow_the_distribution(settings, weights):
  """At the first position and at those that depend on sampled tokens."""
  rows = 20_000
  if settings.get("top_k") == 4:  # 0.4 0.3 0.15 0.1 of 0.95: before the fourth 0.85 / 0.95 = 0.895 < 0.9, so it stays
    assert np.count_nonzero(weights) == 4
  tokens = draw(rows, seed=3, **settings)
  lasts = np.concatenate([np.zeros((rows, 1), int), tokens[:, :2]], axis=1)
  for position in range(3):
    counts = np.bincount((tokens[:, position] - lasts[:, position]) % 5, minlength=5)
    expected = rows * weights / weights.sum()
    possible = expected > 0
    assert not counts[~possible].any()
    chi_square = np.sum((counts[possible] - expected[possible]) ** 2 / expected[possible])
    assert chi_square < CHI_SQUARE[np.count_nonzero(possible) - 1]


def test_samples_depend_on_seed_and_row_but_not_on_the_batch():
  together = draw(8)
  alone = draw(2, row_ids=[6, 1])
  np.testing.assert_array_equal(alone, together[[6, 1]])
  other = draw(8, seed=1)
  assert (other != together).any()
  np.testing.assert_array_equal(draw(8, seed=5, other_seed=1), other)
  assert len({tuple(row) for row in draw(64)}) > 20


def test_samples_of_a_row_differ_and_the_first_does_not_depend_on_their_number():
  several = draw(4, n_best=3).reshape(4, 3, 3)
  np.testing.assert_array_equal(several[:, 0], draw(4))
  assert (several[:, 0] != several[:, 1]).any() and (several[:, 1] != several[:, 2]).any()
