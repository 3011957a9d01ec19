"""ELMo and AWD-LSTM against their original implementations, from their published file formats."""

import json
import pickle
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from t5like.errors import UserError
from t5like.interop.awd_lstm_files import load_awd_lstm, save_awd_lstm
from t5like.interop.elmo_files import elmo_vectors, load_elmo
from t5like.interop.layouts import expected_shapes, flatten
from t5like.models.recurrent import AWDLSTM, AWDLSTMConfig, ELMo, ELMoConfig
from t5like.vocabularies import load_vocabulary
from t5like.vocabularies.characters import spell, spell_words

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
ELMO = GOLDEN / "elmo_tiny"
AWD = GOLDEN / "awd_lstm"


def test_elmo_computes_the_embeddings_of_bilm_tf():
  """Ten batches of three sentences; bilm-tf carries the states of both directions from batch to batch."""
  h5py = pytest.importorskip("h5py")
  model, params = load_elmo(ELMO)
  sentences = json.loads((ELMO / "sentences.json").read_text())
  expected = [h5py.File(ELMO / f"lm_embeddings_{k}.hdf5") for k in range(3)]
  carry = None
  for batch in range(3):
    vectors, carry = elmo_vectors(model, params, [sentences[k][batch].split() for k in range(3)], carry)
    for k in range(3):
      both = np.concatenate(expected[k][str(batch)][...], axis=-1)  # the top layer of both directions
      np.testing.assert_allclose(vectors[k][-1], both, atol=5e-6)
  words = (ELMO / "vocab_test.txt").read_text().split("\n")
  tokens = model.apply({"params": params}, spell_words(words)[None], method=lambda m, c: m.token_embedder(c))
  with h5py.File(ELMO / "elmo_token_embeddings.hdf5") as file:
    np.testing.assert_allclose(tokens[0], file["embedding"][...], atol=5e-6)
  assert np.array_equal(vectors[0][0][:, :16], vectors[0][0][:, 16:])  # layer 0 is the word alone, twice


def test_a_sentence_of_elmo_does_not_depend_on_padding():
  pytest.importorskip("h5py")
  model, params = load_elmo(ELMO)
  short, long = "An apple .".split(), "The ship sank in the cold sea .".split()
  alone, _ = elmo_vectors(model, params, [short])
  together, _ = elmo_vectors(model, params, [short, long])
  np.testing.assert_allclose(alone[0], together[0], atol=1e-6)


def test_characters_are_those_of_bilm_tf():
  """Bytes + 1, between 259 and 260, filled with 261; a sentence's begin is byte 256 + 1."""
  assert spell("ab").tolist()[:6] == [259, 98, 99, 260, 261, 261]
  assert spell("<S>").tolist()[:4] == [259, 257, 260, 261] and spell("</S>").tolist()[1] == 258
  assert spell("é").tolist()[:4] == [259, 196, 170, 260]
  long = spell("x" * 60)
  assert len(long) == 50 and long[0] == 259 and long[49] == 260 and set(long[1:49]) == {121}


def test_awd_lstm_computes_the_logits_of_torch_and_carries_its_states():
  model, params = load_awd_lstm(AWD)
  expected = np.load(AWD / "expected.npz")
  tokens = expected["tokens"].astype(np.int32)
  first = model.apply({"params": params}, {"decoder_input_tokens": tokens[0]})
  np.testing.assert_allclose(first["logits"], expected["logits"][0], atol=1e-5)
  states = model.apply({"params": params}, {"decoder_input_tokens": tokens[0]}, method=AWDLSTM.hidden_states)
  np.testing.assert_allclose(states, expected["states"], atol=1e-5)
  carry = model.initial_carry(4)
  for number, continues in enumerate((0, 1)):
    batch = {"decoder_input_tokens": tokens[number], "decoder_continues": jnp.full(4, continues)}
    outputs = model.apply({"params": params}, batch, carry=carry)
    np.testing.assert_allclose(outputs["logits"], expected["logits"][number], atol=1e-5)
    carry = outputs["carry"]


def test_awd_lstm_files_go_in_and_out(tmp_path):
  model, params = load_awd_lstm(AWD / "weights.pth")
  assert (model.config.vocab_size, model.config.embed_dim, model.config.hidden_dim) == (23, 6, 9)
  save_awd_lstm(tmp_path, model, params)
  again, same = load_awd_lstm(tmp_path)
  assert again.config == model.config
  for path, array in flatten(params).items():
    np.testing.assert_array_equal(flatten(same)[path], array)


def test_published_sizes():
  """ELMo without softmax: 93,600,864; fastai's 60,000 words: 44,333,280."""
  count = lambda model: sum(int(np.prod(shape)) for shape in expected_shapes(model).values())  # noqa: E731
  elmo = ELMoConfig(1, 512, 4096, 2, has_output=False)
  assert count(ELMo(elmo)) == 93_600_864
  assert count(AWDLSTM(AWDLSTMConfig(60_000, 400, 1152, 3))) == 44_333_280


def test_errors_name_the_problem(tmp_path, monkeypatch):
  (tmp_path / "itos.pkl").write_bytes(pickle.dumps(["xxunk"]))
  with pytest.raises(UserError, match="is a pickle"):
    load_vocabulary(str(tmp_path / "itos.pkl"))
  with pytest.raises(UserError, match="no weights of an AWD-LSTM"):
    load_awd_lstm(tmp_path)
  monkeypatch.setitem(__import__("sys").modules, "h5py", None)
  with pytest.raises(UserError, match="needs h5py"):
    load_elmo(ELMO)
