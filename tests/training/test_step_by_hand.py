"""One update of a model small enough to compute all values by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.training import optimizers
from t5like.training import step as training_step
from t5like.training.optimizers import schedules
from t5like.training.state import TrainState
from t5like.training.step import LossSettings, train_step

OPTIMIZER = optimizers.lion(schedules.linear(0.0, 1.0, 10), clip_norm=None)
BATCH = {"decoder_target_tokens": np.zeros((1, 1), np.int32), "decoder_loss_weights": np.ones((1, 1), np.float32)}


class Function:
  """A model whose logits of the two tokens at every position are a function of one parameter, and 0."""

  def __init__(self, function):
    self._function = function

  def apply(self, variables, batch, deterministic, rngs):
    assert not deterministic and set(rngs) == {"dropout"}
    first = self._function(variables["params"]["w"])
    logits = jnp.stack([first, jnp.zeros_like(first)])
    return {"logits": jnp.broadcast_to(logits, (*batch["decoder_target_tokens"].shape, 2))}


def start(w):
  params = {"w": jnp.float32(w)}
  state = OPTIMIZER.transformation.init(params)
  # The optimizer's own step count is 3, like the state's.
  state = jax.tree.map(lambda x: x + 3 if x.dtype == jnp.int32 else x, state)
  return TrainState(step=jnp.int32(3), params=params, opt_state=state, seed=jnp.uint32(0))


def update(function, settings, state, batch=BATCH):
  return jax.jit(lambda *given: train_step(Function(function), OPTIMIZER, settings, *given))(state, batch)


@pytest.fixture(params=["cpu", "gpu"])
def platform(request, monkeypatch):
  monkeypatch.setattr(training_step, "target_platform", lambda: request.param)


def test_one_update(platform):
  # softmax(w, 0) at w = log 3: 3/4 for the target. The loss is log(4/3), its gradient 3/4 - 1.
  state, metrics = update(lambda w: w, LossSettings(z_loss=0.0, layer_norms=True), start(math.log(3)))
  norms = {name: float(norm) for name, norm in metrics.pop("norms").items()}
  assert {name: float(number) for name, number in metrics.items()} == pytest.approx({
    "loss": math.log(4 / 3), "z_loss": 0.0, "accuracy": 1.0, "target_tokens": 1.0, "gradient_norm": 0.25,
    "parameter_norm": math.log(3), "learning_rate": 0.3, "finite": 1.0,
  })  # fmt: skip
  assert float(state.params["w"]) == pytest.approx(math.log(3) + 0.3)  # the sign, at the rate of step 3
  assert norms == pytest.approx({"parameter/w": math.log(3) + 0.3, "gradient/w": 0.25, "update/w": 0.3})
  assert int(state.step) == 4


@pytest.mark.parametrize("guard", [True, False])
def test_a_finite_loss_whose_gradient_is_not(platform, guard):
  # sqrt at 0 is 0, with infinite slope.
  before = start(0.0)
  state, metrics = update(jnp.sqrt, LossSettings(guard=guard), before)
  assert np.isfinite(metrics["loss"]) and not np.isfinite(metrics["gradient_norm"])
  assert float(metrics["finite"]) == 0.0 and int(state.step) == 4
  kept = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (state.opt_state, before.opt_state)), strict=True)]
  assert all(kept) == guard == (float(state.params["w"]) == 0.0)


def test_a_finite_gradient_whose_loss_is_not(platform):
  # Two targets of weight 3e38 pull at w = 0 in opposite directions; their loss, 6e38 * log 2, exceeds float32.
  batch = {
    "decoder_target_tokens": np.array([[0, 1]], np.int32),
    "decoder_loss_weights": np.full((1, 2), 3e38, np.float32),
  }
  state, metrics = update(lambda w: w, LossSettings(normalizer=1.0, z_loss=0.0), start(0.0), batch)
  assert np.isinf(metrics["loss"]) and float(metrics["gradient_norm"]) == 0.0
  assert float(metrics["finite"]) == 0.0
  assert all(int(x) == 3 for x in jax.tree.leaves(state.opt_state) if x.dtype == jnp.int32)
