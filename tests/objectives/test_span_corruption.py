"""Span corruption against published figures, and properties of any row."""

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.objectives import Draws, Rows, SpecialTokens
from t5like.objectives.corruption import span_starts
from t5like.objectives.noise import noise_counts, random_spans
from t5like.objectives.span_corruption import SpanCorruption

SENTINELS = np.arange(999, 899, -1)
SPECIAL = SpecialTokens(vocab_size=1000, pad=0, eos=1, sentinels=tuple(SENTINELS))


@pytest.mark.parametrize(
  ("mean", "raw", "targets", "spans"), [(2, 552, 126, 42), (3, 568, 114, 28), (5, 581, 105, 17), (10, 591, 99, 9)]
)
def test_lengths_at_512_inputs_are_the_papers(mean, raw, targets, spans):
  objective = SpanCorruption(mean_span_length=mean, variant="t5")
  lengths = objective.lengths(512)
  assert (lengths.raw, lengths.targets) == (raw, targets)
  assert noise_counts(raw, 0.15, mean)[1] == spans
  assert SpanCorruption(mean_span_length=mean).lengths(512).targets == targets + 1  # the final sentinel


@pytest.mark.parametrize(
  ("inputs", "raw", "targets"), [(64, 70, 14), (128, 141, 29), (256, 284, 58), (1024, 1137, 229), (2048, 2274, 456)]
)
def test_lengths_of_mean_3_at_other_inputs(inputs, raw, targets):
  lengths = SpanCorruption(variant="t5").lengths(inputs)
  assert (lengths.raw, lengths.inputs, lengths.targets) == (raw, inputs, targets)


def test_lengths_of_the_published_helper_test():
  assert SpanCorruption(0.2, 2.0, "t5").lengths(64).raw == 70
  assert SpanCorruption(0.2, 2.0, "t5").lengths(64).targets == 22
  assert SpanCorruption(0.2, 1.0, "t5").lengths(64).raw == 63
  assert SpanCorruption(0.2, 1.0, "t5").lengths(64).targets == 27


@pytest.mark.parametrize("inputs, mean", [(512, 5), (128, 5), (256, 10), (256, 3), (64, 1)])
def test_half_of_the_tokens_as_noise_fits_the_lengths_that_are_declared(inputs, mean):
  objective = SpanCorruption(noise_density=0.5, mean_span_length=mean)
  lengths, rows = objective.lengths(inputs), 4
  texts = Rows.full(np.random.default_rng(0).choice(np.arange(10, 900), (rows, lengths.raw)))
  made = objective(texts, Draws.of(0, 0, np.arange(rows)), SPECIAL)
  assert made.inputs.lengths.max() + 1 <= lengths.inputs == inputs
  assert set(made.targets.lengths + 1) == {lengths.targets}  # with the last sentinel and EOS


def spans_of(rows, length, density, mean, ends_free):
  return random_spans(Draws.of(0, 0, np.arange(rows)), np.full(rows, length), length, density, mean, ends_free)


@pytest.mark.parametrize("ends_free", [True, False])
@pytest.mark.parametrize("mean", [2, 3, 5, 10])
def test_noise_density_and_span_length_are_as_configured(mean, ends_free):
  mask = spans_of(2000, 568, 0.15, mean, ends_free)
  starts = span_starts(mask)
  assert np.all(mask.sum(1) == 85)  # round(568 * 0.15)
  assert np.all(starts.sum(1) == max(round(85 / mean), 1))


def test_the_paper_variant_favors_no_position():
  mask = spans_of(20_000, 568, 0.15, 3.0, ends_free=True)
  # Away from the ends, where spans cannot extend beyond the row, noise is uniform.
  inner = mask[:, 20:-20].mean(0)
  assert np.max(np.abs(inner - inner.mean())) < 5 * np.sqrt(0.15 * 0.85 / 20_000)
  # By hand: a row starts with noise if the first of 484 equally likely text gaps is one of the 28 chosen.
  assert abs(mask[:, 0].mean() - 28 / 484) < 5 * np.sqrt(0.058 * 0.942 / 20_000)
  assert abs(mask[:, -1].mean() - 28 / 484) < 5 * np.sqrt(0.058 * 0.942 / 20_000)


def test_the_t5_variant_starts_with_text_and_ends_with_noise():
  mask = spans_of(200, 100, 0.15, 3.0, ends_free=False)
  assert not mask[:, 0].any() and mask[:, -1].all()


def test_every_placement_of_short_rows_is_equally_likely():
  # 5 tokens, 2 noise in 2 spans: by hand 6 masks (positions 02 03 04 13 14 24).
  masks = spans_of(60_000, 5, 0.4, 1.0, ends_free=True)
  _, counts = np.unique(masks, axis=0, return_counts=True)
  assert len(counts) == 6
  assert np.sum((counts - 10_000) ** 2 / 10_000) < 20.5  # chi-square, 5 degrees of freedom, p = 0.001


def test_more_spans_than_sentinels_are_refused_with_a_fix():
  objective = SpanCorruption(variant="t5")
  with pytest.raises(UserError, match="needs 114 sentinels") as error:
    objective.check(objective.lengths(2048), SPECIAL)
  assert "extra_ids" in str(error.value)
  objective.check(objective.lengths(512), SPECIAL)
  with pytest.raises(UserError, match="needs 114 sentinels"):  # without `check`, too
    objective(Rows.full(np.full((1, 2274), 5, np.int32)), Draws.of(0, 0, np.arange(1)), SPECIAL)


def test_a_short_row_may_use_all_sentinels():
  """2,000 and 1,999 tokens have 300 of noise in 100 spans; the padding of the second is no text."""
  rows = Rows(np.full((2, 2000), 5, np.int32), np.array([2000, 1999]))
  pairs = SpanCorruption(variant="t5")(rows, Draws.of(0, 0, np.arange(2)), SPECIAL)
  assert pairs.inputs.lengths.tolist() == [1800, 1799] and pairs.targets.lengths.tolist() == [400, 400]


@pytest.mark.parametrize("settings", [dict(noise_density=0.0), dict(mean_span_length=0.5), dict(variant="t6")])
def test_invalid_settings_are_refused(settings):
  with pytest.raises(UserError):
    SpanCorruption(**settings)
