"""XLNet from pre-training to a classifier that learns, and LoRA on it."""

import jax
import numpy as np
import pytest

import t5like
from t5like.errors import UserError
from t5like.inference.tuned_conversions import TunedSettings, to_peft

pytestmark = [pytest.mark.slow(reason="whole runs"), pytest.mark.usefixtures("one_device")]

# Without a norm of its embeddings, a narrow XLNet only learns with larger values at the start.
SMALL = {
  "VOCABULARY": "bert_cased", "VOCAB_SIZE": 28996, "EMBED_DIM": 64, "MLP_DIM": 128, "NUM_HEADS": 2, "HEAD_DIM": 32,
  "NUM_ENCODER_LAYERS": 2, "SCAN_LAYERS": True, "COMPUTE_DTYPE": "float32", "DROPOUT_RATE": 0.0,
  "TransformerConfig.initializer_stddev": 0.1,
}  # fmt: skip
PAIR = "A man is asleep on a bench."


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
  folder = str(tmp_path_factory.mktemp("xlnet") / "run")
  given = dict(
    TASK="novels", BATCH_SIZE=8, LENGTHS={"inputs": 64}, MEMORY_LENGTH=16, TRAIN_STEPS=20, WARMUP_STEPS=5,
    MICROBATCHES=1, PEAK_LEARNING_RATE=1e-3,
  )  # fmt: skip
  t5like.train(t5like.read_experiment(["runs/xlnet.gin"], **SMALL, **given, MODEL_DIR=folder))
  return folder


def tuned(pretrained, folder, steps, *files, **macros):
  files = ["models/xlnet/base.gin", "finetune/bert.gin", "finetune/sentences/snli.gin", *files]
  given = dict(
    INIT_FROM=pretrained, MODEL_DIR=str(folder), TRAIN_STEPS=steps, HEAD_LENGTH=48, LENGTH_BUCKETS=[],
    EVAL_PERIOD=steps, EVAL_EXAMPLES=500, PEAK_LEARNING_RATE=1e-3,
  )  # fmt: skip
  return t5like.train(t5like.read_experiment(files, **SMALL, **given | macros))


def test_a_classifier_learns_and_goes_to_hugging_face(pretrained, tmp_path):
  result = tuned(pretrained, tmp_path / "run", 400)
  assert result.scores["eval/snli_classification/accuracy"] > 42  # chance: 34
  model = t5like.load(tmp_path / "run")
  model.save_hf(tmp_path / "hf")
  again = t5like.load(tmp_path / "hf")
  np.testing.assert_allclose(again.embed(PAIR), model.embed(PAIR), atol=1e-6)
  assert again.classify(PAIR).probability == pytest.approx(model.classify(PAIR).probability, abs=1e-6)


def test_lora_starts_at_the_base_and_is_merged(pretrained, tmp_path):
  tuned(pretrained, tmp_path / "run", 4, "finetune/methods/lora.gin")
  model, base = t5like.load(tmp_path / "run"), t5like.load(pretrained)
  states = model.hidden_states(PAIR).encoder
  assert np.abs(states - base.hidden_states(PAIR).encoder).max() > 1e-6
  zeros = jax.tree.map_with_path(lambda path, x: x * 0 if "lora_b" in str(path) else x, model.params)
  object.__setattr__(model, "params", zeros)
  np.testing.assert_array_equal(model.hidden_states(PAIR).encoder, base.hidden_states(PAIR).encoder)
  model = t5like.load(tmp_path / "run")
  model.save(tmp_path / "merged")
  np.testing.assert_allclose(t5like.load(tmp_path / "merged").hidden_states(PAIR).encoder, states, atol=1e-5)
  with pytest.raises(UserError, match="linear layers, which .*attention/query is not"):
    to_peft(TunedSettings(str(tmp_path / "run"), str(tmp_path / "peft")))
