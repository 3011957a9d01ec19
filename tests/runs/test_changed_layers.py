"""A run goes on with stacked layers, or separate ones: SCAN_LAYERS changes, its checkpoints stay readable."""

import json

import pytest

import t5like

TEXT = ("the old man", "and the sea")
FILES = ["models/gpt2/small.gin", "objectives/causal_lm.gin", "runs/pretrain.gin"]
SMALL = dict(EMBED_DIM=16, MLP_DIM=16, NUM_HEADS=2, HEAD_DIM=8, NUM_DECODER_LAYERS=2, DROPOUT_RATE=0.0)
RUN = dict(
  TASK="novels",
  VOCABULARY="tiny",
  VOCAB_SIZE=4224,
  BATCH_SIZE=8,
  LENGTHS={"inputs": 16},
  LOG_PERIOD=1,
  EVAL_LOSS_PERIOD=0,
)


def run(folder, steps, stacked):
  settings = dict(SCAN_LAYERS=stacked, TRAIN_STEPS=steps, MODEL_DIR=str(folder), CHECKPOINT_PERIOD=2)
  t5like.train(t5like.read_experiment(FILES, **SMALL | RUN | settings))
  return t5like.load(folder).score(*TEXT)


@pytest.mark.parametrize("stacked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_goes_on_and_all_its_checkpoints_can_be_read(run_children_here, tmp_path, stacked):
  before = run(tmp_path / "run", 2, stacked)
  after = run(tmp_path / "run", 4, not stacked)
  assert after != before
  assert t5like.load(tmp_path / "run/checkpoints/2").score(*TEXT) == pytest.approx(before, rel=1e-5)
  losses = [json.loads(line)["loss"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
  run(tmp_path / "same", 4, stacked)
  same = [json.loads(line)["loss"] for line in (tmp_path / "same/metrics.jsonl").read_text().splitlines()]
  assert losses == pytest.approx(same, rel=1e-4)
