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
from t5like.training.step import LossSettings, loss_and_gradients, train_step

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


@pytest.mark.parametrize(
  "given, loss, gradient",
  [
    # The smoothed target is (0.8, 0.2), and the loss its divergence from (3/4, 1/4).
    (dict(label_smoothing=0.2), 0.8 * math.log(0.8 / 0.75) + 0.2 * math.log(0.2 / 0.25), 0.75 - 0.8),
    # Z is 3 + 1.
    (dict(z_loss=0.5), math.log(4 / 3) + 0.5 * math.log(4) ** 2, 0.75 - 1 + math.log(4) * 0.75),
    (dict(microbatches=2), math.log(4 / 3), 0.75 - 1),
    # Divides the sum over both microbatches.
    (dict(normalizer=8.0, microbatches=2), 2 * math.log(4 / 3) / 8, 2 * (0.75 - 1) / 8),
  ],
)
def test_the_loss_of_two_rows(given, loss, gradient):
  batch = {name: np.repeat(x, 2, axis=0) for name, x in BATCH.items()}
  state, metrics = update(lambda w: w, LossSettings(**{"z_loss": 0.0, **given}), start(math.log(3)), batch)
  assert float(metrics["gradient_norm"]) == pytest.approx(abs(gradient))
  assert float(state.params["w"]) == pytest.approx(math.log(3) - math.copysign(0.3, gradient))
  found, divisor = float(metrics["loss"]), given.get("normalizer", float(metrics["target_tokens"]))
  assert found / divisor == pytest.approx(loss, abs=1e-6)


def test_every_step_seed_and_microbatch_draws_its_own_dropout():
  class Drawn(Function):
    def apply(self, variables, batch, deterministic, rngs):
      self._function = lambda w: w + jax.random.uniform(rngs["dropout"])
      return super().apply(variables, batch, deterministic, rngs)

  four_rows = {name: np.repeat(x, 4, axis=0) for name, x in BATCH.items()}
  settings = [LossSettings(microbatches=n) for n in (1, 2, 4)]
  one, two, four = (
    jax.jit(lambda state, each=each: loss_and_gradients(Drawn(None), each, state, four_rows)[0]) for each in settings
  )
  before = start(0.0)
  losses = [one(before), one(before.replace(step=jnp.int32(4))), one(before.replace(seed=jnp.uint32(1)))]
  losses += [two(before), four(before)]
  assert len({float(loss) for loss in losses}) == 5 and two(before) == losses[3]


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
