"""Settings that cannot work are refused by name, before anything is compiled."""

import pytest

from t5like.decoding import DecodeSettings, bucket
from t5like.errors import UserError


@pytest.mark.parametrize(
  ("given", "told"),
  [
    (dict(method="gredy"), "greedy"),
    (dict(max_length=0), "1 to 1,000,000"),
    (dict(max_length=10**12), "1 to 1,000,000"),
    (dict(method="beam", beams=10**9), "1 to 4,096"),
    (dict(method="sample", n_best=10**9), "1 to 4,096"),
    (dict(max_length=4, min_length=5), "0 to max_length = 4"),
    (dict(method="sample", temperature=0.0), 'method="greedy"'),
    (dict(method="sample", top_p=0.0), "above 0"),
    (dict(method="sample", top_p=1.1), "at most 1"),
    (dict(method="sample", top_k=-1), "0 (all tokens)"),
    (dict(method="sample", min_p=2.0), "to 1"),
    (dict(repetition_penalty=0.0), "above 0"),
    (dict(stop_sequences=[()]), "one or more token ids"),
    (dict(stop_sequences=[(-1,)]), "one or more token ids"),
    (dict(top_k=5), 'method="sample"'),
    (dict(temperature=0.7), 'method="sample"'),
    (dict(beams=4), 'method="beam"'),
    (dict(method="sample", length_penalty=1.0), 'method="beam"'),
    (dict(n_best=2), "greedy search has one output"),
    (dict(method="beam", beams=2, n_best=3), "at most beams = 2"),
    (dict(method="beam", penalty_form="gnm"), "gnmt"),
    (dict(method="beam", length_penalty=float("nan")), "a number"),
  ],
)
def test_mistakes_are_named(given, told):
  with pytest.raises(UserError) as error:
    DecodeSettings(**given)
  assert told in error.value.render()


def test_beams_default_to_four_or_as_many_as_are_wanted():
  assert DecodeSettings(method="beam").beams == 4
  assert DecodeSettings(method="beam", n_best=6).beams == 6
  assert DecodeSettings(method="sample", n_best=3).copies == 3 and DecodeSettings().copies == 1


def test_buckets():
  assert [bucket(n) for n in (1, 16, 17, 24, 25, 33, 48, 49, 97, 128, 129)] == [
    16, 16, 24, 24, 32, 48, 48, 64, 128, 128, 192,
  ]  # fmt: skip
  assert [bucket(n, smallest=1) for n in (1, 2, 3, 4, 5, 7)] == [1, 2, 3, 4, 6, 8]
  assert bucket(700, at_most=1024) == 768 and bucket(800, at_most=1000) == 1000 and bucket(1200, at_most=1000) == 1200
