"""Invalid settings are rejected by name, before anything is compiled."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from t5like.decoding import DecodeSettings, bucket, log_likelihoods
from t5like.decoding.ending import Endings
from t5like.decoding.options import decode_settings, options_for, with_defaults, without_own_end
from t5like.errors import UserError
from t5like.vocabularies import load_vocabulary


@pytest.mark.parametrize(
  ("given", "expected"),
  [
    (dict(method="gredy"), "greedy"),
    (dict(max_length=0), "1 to 1,048,576"),
    (dict(max_length=10**12), "1 to 1,048,576"),
    (dict(method="beam", beams=10**9), "1 to 4,096"),
    (dict(method="sample", n_best=10**9), "1 to 4,096"),
    (dict(max_length=4, min_length=5), "0 to max_length=4"),
    (dict(method="sample", temperature=0.0), 'method="greedy"'),
    (dict(method="sample", top_p=0.0), "above 0"),
    (dict(method="sample", top_p=1.1), "at most 1"),
    (dict(method="sample", top_k=-1), "0 (all tokens)"),
    (dict(method="sample", min_p=2.0), "to 1"),
    (dict(repetition_penalty=0.0), "above 0"),
    (dict(stop_sequences=[()]), "nonempty sequences of token ids"),
    (dict(stop_sequences=[(-1,)]), "nonempty sequences of token ids"),
    (dict(top_k=5), 'method="sample"'),
    (dict(temperature=0.7), 'method="sample"'),
    (dict(beams=4), 'method="beam"'),
    (dict(method="sample", length_penalty=1.0), 'method="beam"'),
    (dict(n_best=2), "greedy search has only one output"),
    (dict(method="beam", beams=2, n_best=3), "at most beams=2"),
    (dict(method="beam", penalty_form="gnm"), "gnmt"),
    (dict(method="beam", length_penalty=float("nan")), "a finite number"),
    (dict(method="sample", temperature=float("inf")), 'method="greedy"'),
    (dict(repetition_penalty=float("inf")), "above 0"),
    (dict(min_length=-1), "0 to max_length"),
    (dict(method="sample", min_p=-0.1), "to 1"),
    (dict(method="beam", beams=0), "1 to 4,096"),
    (dict(method="sample", n_best=0), "1 to 4,096"),
    (dict(method="sample", top_k=2**31), "0 (all tokens)"),
    (dict(method="beam", early_stopping="frist"), "first"),
    (dict(max_length="3"), "a whole number"),
    (dict(max_length=True), "a whole number"),
    (dict(max_length=None), "a whole number"),
    (dict(seed=1.5), "a whole number"),
    (dict(method="beam", beams=2.5), "a whole number"),
    (dict(method="sample", temperature="high"), "a number"),
    (dict(repetition_penalty=True), "a number"),
    (dict(forced_end="no"), "True or False"),
    (dict(more_ends=5), "a list of token ids"),
    (dict(more_ends=["</s>"]), "a list of token ids"),
    (dict(more_ends=[-1]), "a list of token ids"),
    (dict(more_ends=[True]), "a list of token ids"),
    (dict(more_ends=b"ab"), "a list of token ids"),
  ],
)
def test_invalid_settings_are_named(given, expected):
  with pytest.raises(UserError) as error:
    DecodeSettings(**given)
  assert expected in error.value.render()


@pytest.mark.parametrize(
  "given",
  [dict(max_length="3"), dict(seed=None), dict(forbidden=[3.5]), dict(forbidden=[None]), dict(forced_first=2.0)],
)
def test_options_of_other_types_are_named(given):
  with pytest.raises(UserError, match=f"{next(iter(given))}=.* is invalid"):
    decode_settings(with_defaults(given, {"max_length": 8}), load_vocabulary("tiny"))


def test_forbidden_tokens_and_sequences():
  given, _ = decode_settings({"forbidden": [5, [6, np.int64(7)]]}, load_vocabulary("tiny"))
  assert given.forbidden == ((5,), (6, 7))
  assert decode_settings({"forbidden": 5}, load_vocabulary("tiny"))[0].forbidden == ((5,),)


def test_the_limits_of_ranges_are_valid():
  DecodeSettings(max_length=1, min_length=1)
  DecodeSettings(max_length=10**6, stop_sequences=[(0,)])
  DecodeSettings(method="sample", n_best=4096, top_k=2**31 - 1, min_p=1.0)
  DecodeSettings(method="beam", beams=4096, n_best=4096)
  DecodeSettings(method="beam", beams=1)


def test_numbers_of_numpy_are_numbers():
  given = DecodeSettings(
    method="beam", max_length=np.int64(9), beams=np.int32(2), length_penalty=np.float32(0.5), more_ends=[np.int64(7)]
  )
  assert given == DecodeSettings(method="beam", max_length=9, beams=2, length_penalty=0.5, more_ends=(7,))
  assert type(given.max_length) is int and type(given.length_penalty) is float


def test_defaults():
  """As documented, with T5X's penalty and stopping."""
  assert dataclasses.asdict(DecodeSettings()) == dict(
    method="greedy", max_length=128, min_length=0, stop_sequences=(), more_ends=(), repetition_penalty=1.0,
    no_repeat_ngram=0, forbidden=(), forced_first=None, forced_end=False, temperature=1.0, top_k=0,
    top_p=1.0, min_p=0.0, seed=0, beams=None, length_penalty=0.6, penalty_form="gnmt", early_stopping="never", n_best=1,
  )  # fmt: skip


@pytest.mark.parametrize(("positions", "length"), [(None, 128), (512, 128), (100, 50), (1, 1)])
def test_outputs_take_at_most_half_of_the_positions_by_default(positions, length):
  assert decode_settings({}, load_vocabulary("tiny"), positions)[0].max_length == length


def test_options_are_kept_for_the_methods_that_use_them():
  given = {"max_length": 9, "temperature": 0.5, "beams": 3, "early_stopping": "first", "n_best": 2}
  kept = {method: set(given) - set(options_for(method, given)) for method in ("greedy", "sample", "beam")}
  of_beams = {"beams", "early_stopping"}
  assert kept == {"greedy": {"temperature", "n_best", *of_beams}, "sample": of_beams, "beam": {"temperature"}}


def test_likelihoods_of_given_tokens():
  logits = jnp.log(jnp.array([[[1.0, 3.0], [2.0, 2.0]]], jnp.float32)).astype(jnp.bfloat16)
  found = log_likelihoods(logits, jnp.array([[1, 0]]))
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, np.log([[0.75, 0.5]]), atol=5e-3)


def test_beams_default_to_four_or_n_best():
  assert DecodeSettings(method="beam").beams == 4
  assert DecodeSettings(method="beam", n_best=6).beams == 6
  assert DecodeSettings(method="sample", n_best=3).hypotheses_per_row == 3 and DecodeSettings().hypotheses_per_row == 1


def test_buckets():
  assert [bucket(n) for n in (1, 16, 17, 24, 25, 33, 48, 49, 97, 128, 129)] == [
    16, 16, 24, 24, 32, 48, 48, 64, 128, 128, 192,
  ]  # fmt: skip
  assert [bucket(n, smallest=1) for n in (1, 2, 3, 4, 5, 7)] == [1, 2, 3, 4, 6, 8]
  assert bucket(700, at_most=1024) == 768 and bucket(800, at_most=1000) == 1000 and bucket(1200, at_most=1000) == 1200


@pytest.mark.parametrize("name", ["gpt2", "tiny", "t5"])
def test_a_text_is_forbidden_as_a_word_and_within_one_and_ends_outputs_within_one(name):
  vocabulary = load_vocabulary(name)
  settings, stops = decode_settings({"forbidden": ["fox"], "stop": ["."]}, vocabulary)

  def contains(text, sequences):
    ids = tuple(vocabulary.encode(text))
    return any(ids[i : i + len(s)] == s for s in sequences for i in range(len(ids)))

  assert all(contains(text, settings.forbidden) for text in ("fox", "the fox", "-fox"))
  assert not contains("the dog", settings.forbidden)
  assert {vocabulary.decode(list(ids)).strip() for ids in settings.forbidden} == {"fox"}
  assert stops == (".",) and contains("over.", settings.stop_sequences) and contains(".", settings.stop_sequences)


def test_the_first_end_is_that_of_the_vocabulary():
  """Which forced_end writes; a model's own end is not listed among the others."""
  settings = DecodeSettings(more_ends=(7, 3, 9))
  assert (
    Endings.from_settings(settings, 3).eos_ids == (3, 7, 9) and Endings.from_settings(settings, None).eos_ids[0] == 7
  )
  assert without_own_end({"beams": 4, "more_ends": (5, 7, 7)}, 5) == {"beams": 4, "more_ends": (7,)}
  assert without_own_end({"beams": 4, "more_ends": (5,)}, 5) == {"beams": 4}
