"""The gin files of methods: each builds its method, and `t5like plan` knows it."""

from pathlib import Path

import pytest

import t5like
from t5like.experiments.reading import read_experiment
from t5like.finetuning.methods import METHODS

GIN = Path(__file__).parents[2] / "gin"
FILES = sorted(path.stem for path in (GIN / "finetune/methods").glob("*.gin"))
TINY = dict(
  EMBED_DIM=16, MLP_DIM=32, NUM_HEADS=2, HEAD_DIM=8, NUM_ENCODER_LAYERS=1, NUM_DECODER_LAYERS=1, MODEL_DIR="unused",
  TASK="snli", INIT_FROM="unused",
)  # fmt: skip


def experiment(name, **changes):
  return read_experiment(["models/t5/tiny.gin", "runs/finetune.gin", f"finetune/methods/{name}.gin"], **TINY | changes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FILES)
def test_a_file_builds_its_method(name):
  built = experiment(name, **{"RANK": 4} if name == "qlora" else {})  # 64 is above the width of this model
  assert built.method is not None
  if name != "bitfit":  # T5 has no biases
    assert built.tuned().model.config == built.model.config
  assert f"finetune/methods/{name}.gin" in (GIN / f"finetune/methods/{name}.gin").read_text()


def test_every_method_has_a_file():
  assert set(METHODS) - {type(experiment(name).method).__name__ for name in FILES} == {"Together"}


def test_a_plan_has_less_memory_for_lora_than_for_everything():
  lengths = {"inputs": 16, "targets": 8}
  full = read_experiment(["models/t5/tiny.gin", "runs/finetune.gin"], **TINY, LENGTHS=lengths, BATCH_SIZE=8)
  lora = experiment("lora", LENGTHS=lengths, BATCH_SIZE=8, RANK=2)
  plans = [t5like.plan(each, "h100x1") for each in (full, lora)]
  states = [plan.forecasts[0].work.state for plan in plans]
  assert states[0].selection is None and len(states[1].selection.layers) == 12
  assert "frozen parameters: no gradients" in plans[1].text()
