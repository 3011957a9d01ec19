"""Summaries of BART equal those of Hugging Face's `generate`, token by token: golden files of make_bart_goldens.py."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bart_folders import BART, GOLDEN, arrays_of, write_folder

from t5like import parallel
from t5like.decoding.options import decode_settings, with_defaults
from t5like.decoding.shaping import forbid_repeated_ngrams, force
from t5like.inference.generation import Generator
from t5like.interop import huggingface
from t5like.interop.hf_generation import decoding_of, ends_of
from t5like.vocabularies import load_vocabulary

RESULTS = json.loads((GOLDEN / "decoding.json").read_text())
# Each case is compiled; one with everything that bart-large-cnn uses runs by default.
CASES = [
  pytest.param(name, case, marks=[] if (name, case) == (BART, "large-cnn") else [pytest.mark.slow])
  for name, results in RESULTS.items()
  for case in results["cases"]
]


@pytest.mark.parametrize("name, case", CASES)
def test_outputs_equal_hugging_face(name, case, tmp_path):
  """Settings are read from a generation_config.json, as `t5like.load` does."""
  write_folder(name, tmp_path)
  expected, eos = RESULTS[name]["cases"][case], RESULTS[name]["eos_id"]
  (tmp_path / "generation_config.json").write_text(json.dumps(expected["options"]))
  own = decoding_of(tmp_path, encoder_decoder=True)
  settings, _ = decode_settings(with_defaults({"n_best": own["beams"]} if "beams" in own else {}, own), None)
  imported = huggingface.load(tmp_path)
  generator = Generator(imported.model, parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1]), eos)
  inputs = {n: arrays_of(name)[n].astype(np.int32) for n in ("input_ids", "attention_mask")}
  prompts = {"encoder_input_tokens": inputs["input_ids"], "encoder_lengths": inputs["attention_mask"].sum(axis=1)}
  decoded = generator(imported.params, prompts, settings)
  rows = [row.tolist() for outputs in decoded.tokens for row in outputs]
  for ours, theirs in zip(rows, expected["sequences"], strict=True):
    assert ours == theirs + [0] * (len(ours) - len(theirs))
  if expected["scores"] is not None:
    np.testing.assert_allclose(decoded.ranking.reshape(-1), expected["scores"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("theirs, ours", [(1, 1), (2, 1), (3, 2)])
def test_lengths_do_not_count_the_start_token(theirs, ours, tmp_path):
  (tmp_path / "generation_config.json").write_text(json.dumps({"max_length": theirs, "min_length": theirs}))
  own = decoding_of(tmp_path, encoder_decoder=True)
  settings, _ = decode_settings(with_defaults({}, own), None)
  assert (settings.max_length, settings.min_length) == (ours, theirs - 1)


def forbidden(tokens: list[list[int]], length: int, n: int) -> list[set[int]]:
  logits = forbid_repeated_ngrams(jnp.zeros((len(tokens), 9)), jnp.array(tokens), jnp.array(length), n)
  return [set(np.flatnonzero(row).tolist()) for row in np.asarray(logits < 0)]


def test_repeated_ngrams_are_forbidden():
  rows = [[3, 4, 5, 3, 4, 0, 0], [3, 4, 3, 5, 3, 0, 0], [-1, -1, 2, 2, 2, 0, 0]]
  assert forbidden(rows, 5, 3) == [{5}, set(), {2}]
  assert forbidden(rows, 5, 2) == [{5}, {4, 5}, {2}]
  assert forbidden(rows, 5, 1) == [{3, 4, 5}, {3, 4, 5}, {2}]
  assert forbidden(rows, 2, 2) == [set(), set(), set()], "what follows is not generated yet"
  assert forbidden(rows, 1, 4) == [set(), set(), set()], "no sequence yet"
  assert forbidden([[-1, -1, -1, 7]], 4, 2) == [set()], "padding repeats nothing"


def test_a_forced_token_is_certain():
  found = force(jnp.array([[1.0, 2.0, 3.0]] * 2), 1, jnp.array([True, False]))
  np.testing.assert_array_equal(found, [[-np.inf, 0.0, -np.inf], [1.0, 2.0, 3.0]])


def test_a_forced_token_is_an_id_or_a_text():
  vocabulary = load_vocabulary("roberta")
  for given in (0, "0", "<s>"):
    assert decode_settings({"forced_first": given}, vocabulary)[0].forced_first == 0


def test_only_numbers_are_ends_of_a_folder(tmp_path):
  for given, ends in (([41, True, None, 48.0, "7", 48], [41, 48]), (41, [41]), (None, []), (True, [])):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": given}))
    assert ends_of(tmp_path) == ends
