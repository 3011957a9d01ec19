"""Learning rates at steps where they are easy to compute by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.errors import UserError
from t5like.training.optimizers import schedules


def rates(schedule, *steps):
  """Evaluates a schedule as the train step does: on a traced int32 scalar."""
  compiled = jax.jit(schedule)
  values = [compiled(jnp.int32(step)) for step in steps]
  assert all(value.dtype == jnp.float32 and value.shape == () for value in values)
  return [float(value) for value in values]


def close(values):
  return pytest.approx(values, rel=1e-5, abs=1e-9)


def test_constant():
  assert rates(schedules.constant_rate(0.001), 0, 123_456) == close([0.001, 0.001])


def test_inverse_square_root_is_t5s():
  # 1/sqrt(max(n, 10^4)): 0.01 up to step 10,000, 0.001 at a million, 2^-9.5 at 2^19.
  expected = [0.01, 0.01, 0.001, 2**-9.5]
  assert rates(schedules.inverse_square_root(), 0, 10_000, 1_000_000, 2**19) == close(expected)
  assert rates(schedules.inverse_square_root(scale=2.0, warmup_steps=4), 0, 16) == close([1.0, 0.5])


def test_linear_increases_or_decreases_then_stays_constant():
  assert rates(schedules.linear(1.0, 0.2, 8), 0, 2, 4, 8, 100) == close([1.0, 0.8, 0.6, 0.2, 0.2])
  assert rates(schedules.linear(0.0, 0.3, 3), 0, 1, 3) == close([0.0, 0.1, 0.3])


def test_cosine_at_thirds_and_quarters():
  # cos(pi/3) = 1/2, cos(pi/2) = 0, cos(2 pi/3) = -1/2.
  assert rates(schedules.cosine(1.0, 0.0, 12), 0, 4, 6, 8, 12, 50) == close([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
  assert rates(schedules.cosine(1.0, 0.2, 12), 6, 12) == close([0.6, 0.2])


def test_warmup_scales_the_first_steps_of_another_schedule():
  plain = schedules.inverse_square_root(scale=1.0, warmup_steps=16)  # 1/4 at first
  assert rates(schedules.warmup(plain, 4), 0, 1, 3, 4, 100) == close([0.0625, 0.125, 0.25, 0.25, 0.1])


def test_warmup_linear_is_berts():
  schedule = schedules.warmup_linear(peak=1.0, warmup_steps=10, total_steps=110)
  assert rates(schedule, 0, 9, 10, 60, 110, 500) == close([0.1, 1.0, 1.0, 0.5, 0.0, 0.0])


def test_warmup_cosine_is_nanot5s():
  # From half of the peak up to it over 10,000 steps, then down to 1e-5 at 65,536; 37,768 is half-way down.
  schedule = schedules.warmup_cosine(0.02, 10_000, 65_536, start=0.01, final=1e-5)
  expected = [0.01, 0.015, 0.02, (0.02 + 1e-5) / 2, 1e-5]
  assert rates(schedule, 0, 5_000, 10_000, 37_768, 65_536) == close(expected)
  assert rates(schedules.warmup_cosine(1.0, 0, 12), 0, 6) == close([1.0, 0.5])


def test_slanted_triangular_is_ulmfits():
  # T = 100, cut at 10: p = 0 at first, 1/2 at step 5, 1 at 10, 1/2 at 55 and 0 at 100; rate = peak (1 + 31 p) / 32.
  schedule = schedules.slanted_triangular(peak=0.32, total_steps=100)
  assert rates(schedule, 0, 5, 10, 55, 100, 200) == close([0.01, 0.165, 0.32, 0.165, 0.01, 0.01])
  # The cut is rounded down, to 2.
  assert rates(schedules.slanted_triangular(0.32, 29), 0, 1, 2) == close([0.01, 0.165, 0.32])
  assert all(np.isfinite(rates(schedules.slanted_triangular(total_steps=3), 0, 1, 2, 3)))
  assert rates(schedules.slanted_triangular(0.32, 29, ratio=1.0), 0, 2, 29) == close([0.32] * 3)


def test_chained_schedules_count_from_their_own_start():
  schedule = schedules.chain(
    [schedules.linear(0.0, 1.0, 10), schedules.constant_rate(1.0), schedules.cosine(1.0, 0.0, 12)], [10, 20]
  )
  assert rates(schedule, 0, 5, 10, 19, 20, 26, 32, 40) == close([0.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0])


def test_runs_of_a_handful_of_steps():
  flat, half = schedules.constant_rate(1.0), schedules.constant_rate(0.5)
  assert rates(schedules.chain([flat, half], [1]), 0, 1) == close([1.0, 0.5])
  # Shorter than its warmup: it would reach the peak only after its end, and decay in one step.
  assert rates(schedules.warmup_cosine(1.0, 4, 2), 0, 2, 4, 5) == close([0.0, 0.5, 1.0, 0.0])
  assert rates(schedules.warmup_linear(1.0, 0, 4), 0, 1, 3, 4) == close([1.0, 0.75, 0.25, 0.0])
  assert rates(schedules.warmup_linear(1.0, 4, 4), 0, 3, 4) == close([0.25, 1.0, 0.0])
  # A tenth of three steps is less than one: the peak is at step 1, and the decay takes 9.
  assert rates(schedules.slanted_triangular(1.0, 3, ratio=4.0), 0, 1, 4) == close([0.25, 1.0, 0.75])


def test_a_chained_schedule_never_sees_a_negative_step():
  # 1/sqrt(-3) is NaN, and a NaN that where() drops still shows in gradients and under debug_nans.
  late = lambda step: 1.0 / jnp.sqrt(step.astype(jnp.float32) + 1.0)  # noqa: E731
  with jax.debug_nans(True):
    assert rates(schedules.chain([schedules.constant_rate(0.5), late], [10]), 0, 9, 10, 13) == close([0.5, 0.5, 1, 0.5])


@pytest.mark.parametrize("boundaries", [[], [5, 5], [0], [3, 2], [1, 2, 3], [-1]])
def test_invalid_boundaries_are_refused(boundaries):
  count = 3 if len(boundaries) == 2 else 2
  with pytest.raises(UserError, match="invalid boundaries"):
    schedules.chain([schedules.constant_rate()] * count, boundaries)


@pytest.mark.parametrize(
  "make",
  [
    lambda: schedules.linear(steps=0),
    lambda: schedules.cosine(steps=1.5),
    lambda: schedules.warmup(0.1),
    lambda: schedules.chain([], []),
    lambda: schedules.inverse_square_root(warmup_steps=0),
    lambda: schedules.slanted_triangular(cut_fraction=1.0),
    lambda: schedules.warmup_linear(warmup_steps=-1),
    lambda: schedules.warmup_cosine(warmup_steps=-1),
  ],
)
def test_invalid_arguments_are_refused(make):
  with pytest.raises(UserError, match="invalid "):
    make()
