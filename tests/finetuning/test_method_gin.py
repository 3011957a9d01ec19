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


def test_a_plan_has_state_and_gradients_only_of_lora():
  plan = t5like.plan(experiment("lora", LENGTHS={"inputs": 16, "targets": 8}, BATCH_SIZE=8, RANK=2), "h100x1")
  assert len(plan.forecasts[0].work.state.selection.layers) == 12
  assert "frozen parameters: no gradients" in plan.text()
