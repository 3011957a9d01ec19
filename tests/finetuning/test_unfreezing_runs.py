"""Runs that unfreeze on the way, and what they record: resuming over a boundary gives the same bytes."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from trainers import tiny_settings

import t5like
from t5like.errors import UserError
from t5like.experiments.writing import config_text
from t5like.finetuning import FrozenBelow, GradualUnfreezing, HeadOnly, LayerwiseDecay, UnfreezeOnPlateau
from t5like.models import GPT, TransformerConfig
from t5like.training.checkpoints import CheckpointRetention, load_parameters
from t5like.training.checkpoints.arrays import stored_arrays

pytestmark = pytest.mark.usefixtures("one_device")
SIZES = dict(vocab_size=4224, embed_dim=8, mlp_dim=16, num_heads=2, head_dim=4, num_encoder_layers=0)


@pytest.fixture
def settings(tmp_path, token_caches):
  model = GPT(TransformerConfig(**SIZES, num_decoder_layers=2, scan_layers=True, dropout_rate=0.1))
  return tiny_settings(tmp_path / "run", token_caches, model) | dict(steps=4, trainable=GradualUnfreezing(period=2))


def same(one, two):
  return jax.tree.all(jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), one, two))


@pytest.mark.slow
def test_resuming_over_the_boundary_of_an_episode_is_exact(settings, tmp_path, capsys):
  """Stopped at the boundary and within the second episode; the checkpoint at the boundary has the first one's state."""
  whole = t5like.train(t5like.Experiment(**settings, checkpoint_period=1, keep=CheckpointRetention(last=4)))
  assert "step 2: from here on, everything trains" in capsys.readouterr().out
  parts = settings | {"model_dir": str(tmp_path / "parts")}
  for steps in (2, 3, 4):
    result = t5like.train(t5like.Experiment(**parts | {"steps": steps}))
  run = Path(parts["model_dir"])
  assert same(load_parameters(whole.model_dir, 4), load_parameters(run, 4))
  stored = [stored_arrays(run / f"checkpoints/{step}/training") for step in (2, 3)]
  sizes = [
    next(x.shape[0] for path, x in arrays.items() if path.endswith("episode_0/mu/decoder/layers/mlp/wi/kernel"))
    for arrays in stored
  ]
  assert sizes == [1, 1] and len(stored[1]) > len(stored[0])  # the second layer has a state of its own
  kernels = [load_parameters(whole.model_dir, step)["decoder"]["layers"]["mlp"]["wi"]["kernel"] for step in (1, 2, 3)]
  lower, upper = ([kernel[layer].tobytes() for kernel in kernels] for layer in (0, 1))
  assert lower[0] == lower[1] != lower[2] and len(set(upper)) == 3
  card = json.loads((run / "run_card.json").read_text())["trains"]
  assert card["method"] == "GradualUnfreezing" and [e["first_step"] for e in card["episodes"]] == [0, 2]
  assert result.step == 4 and np.isfinite(result.metrics["loss"])


@pytest.mark.slow
def test_a_plateau_of_the_loss_unfreezes_the_next_layer(settings, capsys):
  """With a learning rate of 0, the loss never improves: the second evaluation is a plateau."""
  trainable = UnfreezeOnPlateau(metric="eval_loss/novels/loss", layers=1)
  given = settings | dict(
    trainable=trainable, optimizer=t5like.optimizers.adamw(0.0), eval_split="train", eval_loss_period=1,
    eval_loss_batches=1,
  )  # fmt: skip
  experiment = t5like.Experiment(**given)
  t5like.train(dataclasses.replace(experiment, steps=2))
  assert "from here on" not in capsys.readouterr().out  # the plateau was at the last step ...
  t5like.train(dataclasses.replace(experiment, steps=3))
  assert "step 2: from here on, everything trains" in capsys.readouterr().out  # ... and is known after a restart
  wrong = dataclasses.replace(experiment, trainable=dataclasses.replace(trainable, metric="eval/snli/accuracy"))
  with pytest.raises(UserError, match="UnfreezeOnPlateau.metric = 'eval/snli/accuracy' is not computed"):
    t5like.train(dataclasses.replace(wrong, model_dir=f"{settings['model_dir']}_2"))


def test_errors_come_before_anything_is_written(settings):
  with pytest.raises(UserError, match="HeadOnly needs a model with a head"):
    t5like.train(t5like.Experiment(**settings | {"trainable": HeadOnly()}))
  assert not Path(settings["model_dir"]).exists()
  with pytest.raises(UserError, match="invalid TRAINABLE"):
    t5like.Experiment(**settings | {"trainable": HeadOnly})
  with pytest.raises(UserError, match="invalid LAYER_RATES"):
    t5like.Experiment(**settings | {"layer_rates": 0.8})


def test_gin_names_what_trains_and_the_text_is_read_back(tmp_path, settings):
  read = t5like.read_experiment(
    ["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"],
    [("TRAINABLE", "@GradualUnfreezing()"), ("GradualUnfreezing.period", "7"), ("LAYER_RATES", "@LayerwiseDecay()")],
    MODEL_DIR="x",
  )
  assert read.trainable == GradualUnfreezing(period=7) and read.layer_rates == LayerwiseDecay(0.8)
  (tmp_path / "config.gin").write_text(config_text(dataclasses.replace(read, steps=9)))
  back = t5like.read_experiment([str(tmp_path / "config.gin")])
  assert (back.trainable, back.layer_rates, back.steps) == (read.trainable, read.layer_rates, 9)


def test_the_plan_counts_state_and_gradients_of_what_trains(settings):
  frozen = t5like.plan(t5like.Experiment(**settings | {"trainable": FrozenBelow(1)}), "h100x8").forecasts[0].memory
  everything = t5like.plan(t5like.Experiment(**settings), "h100x8").forecasts[0].memory
  trained = 4 * (2 * 8 * 8 + 2 * 8 * 8 + 2 * 8 * 16 + 3 * 8)  # one layer's kernels and norms, and the final norm
  assert frozen.gradients == trained and frozen.optimizer < 2.1 * trained + 64
  assert everything.gradients == everything.parameters == frozen.parameters
