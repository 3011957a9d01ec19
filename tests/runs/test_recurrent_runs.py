"""Training of recurrent models: carried state, resuming, ULMFiT's fine-tuning."""

import json
import os
from pathlib import Path

import jax
import labeled_tasks
import numpy as np
import pytest
from trainers import assert_same_bytes, parameters

import t5like
from t5like.errors import UserError
from t5like.interop.awd_lstm_files import load_awd_lstm
from t5like.interop.elmo_files import load_elmo
from t5like.training.checkpoints.arrays import read_nested
from t5like.training.checkpoints.folders import TRAINING, find_checkpoint

pytestmark = [pytest.mark.slow]  # whole runs, with their token caches

LM = ["runs/awd_lstm.gin", "models/awd_lstm/tiny.gin"]
SMALL = dict(EMBED_DIM=8, HIDDEN_DIM=12, BATCH_SIZE=8, LENGTHS={"inputs": 8}, CHECKPOINT_PERIOD=2, LOG_PERIOD=1)


def lm(folder, **macros):
  return t5like.read_experiment(
    LM, **SMALL | dict(MODEL_DIR=str(folder), TRAIN_STEPS=4, PEAK_LEARNING_RATE=0.05) | macros
  )


def carried(folder, step):
  return jax.tree.leaves(read_nested(find_checkpoint(folder, step) / TRAINING)["carry"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp("lm") / "run"
  t5like.train(lm(folder))
  return folder


def test_a_resumed_run_continues_with_the_carried_state(trained, tmp_path):
  """Two steps, then two more in another process's place: the same bytes as four in a row."""
  with pytest.raises(KeyboardInterrupt):
    t5like.train(lm(tmp_path), hooks=[t5like.Hook(every=2, action=_interrupt)])
  assert all(np.any(x) for x in carried(tmp_path, 2))
  t5like.train(lm(tmp_path))
  assert_same_bytes(parameters(trained, 4), parameters(tmp_path, 4))
  for a, b in zip(carried(trained, 4), carried(tmp_path, 4), strict=True):
    np.testing.assert_array_equal(a, b)


def _interrupt(state):
  if int(state.step) == 2:
    raise KeyboardInterrupt


@pytest.mark.parametrize("macros", [dict(MICROBATCHES=2), dict(PHASES=[{"steps": 1, "batch_size": 2}])])
def test_what_changes_the_rows_of_a_batch_is_refused(tmp_path, macros):
  with pytest.raises(UserError, match="carries its state"):
    t5like.train(lm(tmp_path, **macros))


def test_ulmfit_unfreezes_from_the_head_down(trained, tmp_path):
  """Head, top layer, lower layer, embeddings: four episodes; lower layers at 1 / 2.6 of the rate of the next."""
  files = ["models/awd_lstm/tiny.gin", "finetune/ulmfit.gin", "finetune/sentences/snli.gin"]
  sizes = {name: SMALL[name] for name in ("EMBED_DIM", "HIDDEN_DIM")}
  result = t5like.train(
    t5like.read_experiment(
      files, **sizes, MODEL_DIR=str(tmp_path), INIT_FROM=str(trained), TRAIN_STEPS=4, UNFREEZE_PERIOD=1, BATCH_SIZE=8,
      HEAD_LENGTH=16, LENGTH_BUCKETS=[], EVAL_PERIOD=4, EVAL_EXAMPLES=8, CHECKPOINT_PERIOD=1, CHECKPOINTS_KEPT=9,
    )
  )  # fmt: skip
  assert result.step == 4 and "eval/snli_classification/accuracy" in result.scores
  steps = [parameters(tmp_path, step) for step in (1, 2, 3, 4)]
  assert steps[0]["/head/dense/kernel"].shape == (3 * 8, 50) and steps[0]["/head/out/kernel"].shape == (50, 3)
  groups = {
    "head/out": "/head/out/kernel", "top": "/backbone/decoder/layers_1/recurrent_kernel",
    "low": "/backbone/decoder/layers_0/recurrent_kernel", "words": "/backbone/token_embedder/embedding",
  }  # fmt: skip
  start = {path.replace("/", "/backbone/", 1): array for path, array in parameters(trained, 4).items()}
  moved = {
    name: [not np.array_equal(a[path], b[path]) for a, b in zip(steps[:-1], steps[1:], strict=True)]
    for name, path in groups.items()
  }
  np.testing.assert_array_equal(steps[0][groups["top"]], start[groups["top"]])
  assert moved == {"head/out": [True] * 3, "top": [True] * 3, "low": [False, True, True], "words": [False, False, True]}
  assert t5like.load(tmp_path).classify(["A dog runs."])[0].label in ("entailment", "neutral", "contradiction")


def test_fastai_weights_start_a_model_with_other_words(tmp_path):
  """Rows of shared words are kept, wherever they are; others are the mean of those."""
  golden = Path(__file__).parents[1] / "data" / "golden" / "awd_lstm" / "weights.pth"
  words = ["xxunk", "xxpad", "xxbos", "xxmaj", "xxup", *(f"word{i}" for i in range(18))]
  new = [*words[:5], "zebra", *words[:4:-1][:6]]
  folder = tmp_path / "fastai"
  folder.mkdir()
  (folder / "weights.pth").write_bytes(golden.read_bytes())
  (folder / "itos.json").write_text(json.dumps(words))
  (tmp_path / "new.json").write_text(json.dumps(new))
  (tmp_path / "text.txt").write_text("\n".join(" ".join(new[5:]) for _ in range(40)))
  experiment = lm(
    tmp_path / "run", VOCABULARY=str(tmp_path / "new.json"), VOCAB_SIZE=12, EMBED_DIM=6, HIDDEN_DIM=9, NUM_LAYERS=3,
    INIT_FROM=str(folder), TASK="tale", CORPUS_FILES={"train": str(tmp_path / "text.txt")}, PEAK_LEARNING_RATE=0.0,
  )  # fmt: skip
  t5like.train(experiment)
  _, before = load_awd_lstm(golden)
  after, table = parameters(tmp_path / "run"), before["token_embedder"]["embedding"]
  kept = [words.index(word) for word in new if word in words]
  rows = np.delete(after["/token_embedder/embedding"], 5, axis=0)
  np.testing.assert_array_equal(rows, table[kept])
  np.testing.assert_allclose(after["/token_embedder/embedding"][5], table[kept].mean(axis=0), atol=5e-3)
  np.testing.assert_array_equal(np.delete(after["/output_bias"], 5), before["output_bias"][kept])


def test_elmo_trains_in_both_directions_and_its_layers_are_mixed(tmp_path, monkeypatch):
  """Published weights, frozen, with a learned mix of the three layers and a linear layer: ELMo's use."""
  monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, Path(__file__).parents[1:3])))
  words = ["</S>", "<S>", "<UNK>", *labeled_tasks.WORDS, "good", "bad"]
  (tmp_path / "words.txt").write_text("\n".join(words) + "\n")
  golden = Path(__file__).parents[1] / "data" / "golden" / "elmo_tiny"
  sizes = dict(EMBED_DIM=16, HIDDEN_DIM=64, COMPUTE_DTYPE="float32", VOCAB_SIZE=15)
  sizes |= dict(VOCABULARY=str(tmp_path / "words.txt"))
  filters = {"ELMoConfig.filters": ((1, 4), (2, 8), (3, 16), (4, 32), (5, 64)), "ELMoConfig.char_dim": 4}
  result = t5like.train(
    t5like.read_experiment(
      ["models/elmo/original.gin", "finetune/bert.gin", "trainable/probe.gin"], **sizes, HAS_OUTPUT=False, **filters,
      INIT_FROM=str(golden), MODEL_DIR=str(tmp_path / "probe"), HEAD_TASK="toy_classification", METRIC="accuracy",
      TASK_MODULES=["labeled_tasks"], EXAMPLES=64, EPOCHS=20, BATCH_SIZE=16, HEAD_LENGTH=16, LENGTH_BUCKETS=[],
      PEAK_LEARNING_RATE=0.1,
    )
  )  # fmt: skip
  assert result.scores["eval/toy_classification/accuracy"] >= 75.0
  mixed = parameters(tmp_path / "probe")
  assert mixed["/head/mix/weights"].shape == (3,) and np.ptp(mixed["/head/mix/weights"]) > 0
  assert mixed["/head/out/kernel"].shape == (32, 2)
  _, published = load_elmo(golden)
  np.testing.assert_array_equal(
    mixed["/backbone/forward/layers_1/projection"], published["forward"]["layers_1"]["projection"]
  )
  (tmp_path / "text.txt").write_text("\n".join(" ".join(words[3:]) for _ in range(80)))
  run = t5like.train(
    t5like.read_experiment(
      ["runs/elmo.gin"], **sizes, **filters, MODEL_DIR=str(tmp_path / "lm"), TASK="tale", BATCH_SIZE=8, TRAIN_STEPS=40,
      LENGTHS={"inputs": 8}, CORPUS_FILES={"train": str(tmp_path / "text.txt")}, PEAK_LEARNING_RATE=0.01, LOG_PERIOD=10,
    )
  )  # fmt: skip
  # The words always come in the same order: both directions learn it; guessing has a loss of log(13) = 2.6.
  assert run.metrics["loss"] < 1.5 and run.metrics["backward_loss"] < 1.5
  assert t5like.load(tmp_path / "lm").embed(["the sea"]).shape == (1, 32)
