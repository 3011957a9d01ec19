"""Published files of ELMo and AWD-LSTM through `t5like.load`: vectors, likelihoods, generated text, saved again."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import t5like
from t5like.errors import UserError
from t5like.experiments.compatibility import check_layout, check_vocabulary
from t5like.vocabularies import load_vocabulary

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
ELMO = GOLDEN / "elmo_tiny"
WORDS = ["xxunk", "xxpad", "xxbos", "xxmaj", "xxup", *(f"w{number}" for number in range(18))]


@pytest.fixture(scope="module")
def awd(tmp_path_factory):
  folder = tmp_path_factory.mktemp("awd")
  shutil.copy(GOLDEN / "awd_lstm" / "weights.pth", folder)
  (folder / "itos.json").write_text(json.dumps(WORDS))
  return t5like.load(folder / "weights.pth")


def test_elmo_files_embed_any_words(tmp_path):
  """States of a sentence are those of bilm-tf; <S> and </S> surround the words."""
  h5py = pytest.importorskip("h5py")
  model, text = t5like.load(ELMO), json.loads((ELMO / "sentences.json").read_text())[1][0]
  found = model.hidden_states(text)
  assert found.tokens == ["<S>", *text.split(), "</S>"] and found.decoder.shape == (3, len(found.tokens), 32)
  with h5py.File(ELMO / "lm_embeddings_1.hdf5") as file:
    np.testing.assert_allclose(found.decoder[-1][1:-1], np.concatenate(file["0"][...], axis=-1), atol=5e-6)
  np.testing.assert_allclose(model.embed(text), found.decoder[-1].mean(0), atol=1e-5)
  check_saved(model, tmp_path / "saved")
  assert t5like.load(ELMO / "lm_weights.hdf5").identity() == model.identity()
  for run, words in (
    (model.score, "does not score"), (model.generate, "does not generate"), (model.attention, "has no attention"),
  ):  # fmt: skip
    with pytest.raises(UserError, match=words):
      run(text)
  with pytest.raises(UserError, match="no ids for a token cache"):
    check_vocabulary(model.config, "spelled", load_vocabulary("spelled"))
  assert not model.config.has_output
  with pytest.raises(UserError, match="no output layer to train"):
    check_layout(model.module, None)


def test_a_loss_needs_an_output_layer(tmp_path, request):
  text = tmp_path / "text.txt"
  text.write_text("a sentence of words\n")
  run = request.getfixturevalue("t5like")  # the command; here, the name is that of the module
  stderr = run("eval", f"--model_dir={ELMO}", "--loss", f"--text={text}", status=2).stderr
  assert "this ELMo was saved without its output layer" in stderr


def check_saved(model, folder):
  model.save(folder)
  again = t5like.load(folder)
  assert (again.module, again.vocabulary, again.prompt_form) == (model.module, model.vocabulary, model.prompt_form)
  jax.tree.map(np.testing.assert_array_equal, again.source.read(None, False, None), model.source.params)


def likelihood(model, before, after):
  """Returns the sum over the tokens `after`; padding on the right is not read."""
  rows = np.zeros((1, 8), np.int32)
  rows[0, : len(before) + len(after)] = [*before, *after]
  logits = jax.jit(model.module.apply)({"params": model.params}, {"decoder_input_tokens": rows})["logits"]
  scores = np.asarray(jax.nn.log_softmax(logits[0]))
  return sum(scores[len(before) + at - 1, token] for at, token in enumerate(after))


def test_awd_lstm_files_score_and_generate(awd, tmp_path):
  """Against full passes: the likelihood of a text, and of beams after prompts of unequal lengths."""
  assert awd.score("w1 w2 w7") == pytest.approx(likelihood(awd, [2], awd.vocabulary.encode("w1 w2 w7")), rel=1e-5)
  prompts = ["w1 W9", "w3"]
  found = awd.generate(prompts, beams=3, n_best=2, max_length=4, length_penalty=0.0)
  for prompt, outputs in zip(prompts, found, strict=True):
    before = [2, *awd.vocabulary.encode(prompt)]
    for output in outputs:
      ids = awd.vocabulary.encode(output.text)
      assert len(ids) == 4 and output.score == pytest.approx(likelihood(awd, before, ids), rel=1e-4)
    assert outputs[0].score > outputs[1].score
  check_saved(awd, tmp_path / "saved")


def test_what_an_awd_lstm_does_not_have(awd, tmp_path):
  with pytest.raises(UserError, match="no layers of one width"):
    awd.hidden_states("w1")
  with pytest.raises(UserError, match="no class for AWDLSTM"):
    awd.save_hf(tmp_path / "hf")
  shutil.copy(GOLDEN / "awd_lstm" / "weights.pth", tmp_path)
  with pytest.raises(UserError, match="no vocabulary for the model"):
    t5like.load(tmp_path)
  (tmp_path / "weights.pth").unlink()
  with pytest.raises(UserError, match="no model in"):
    t5like.load(tmp_path)
