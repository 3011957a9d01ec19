"""Training of recurrent models: carried state, resuming, ULMFiT's fine-tuning."""

import jax
import numpy as np
import pytest
from trainers import assert_same_bytes, parameters

import t5like
from t5like.errors import UserError
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
