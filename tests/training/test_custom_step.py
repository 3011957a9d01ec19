"""A train step that returns something else than a state and metrics is an error that names the difference."""

import jax
import jax.numpy as jnp
import pytest

from t5like.errors import UserError
from t5like.training.custom_step import checked_step
from t5like.training.state import TrainState

STATE = TrainState(jnp.int32(0), {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, (jnp.ones(3),), jnp.uint32(0))
LOSS = {"loss": jnp.float32(1.0)}


def trace(step):
  shapes = jax.eval_shape(lambda: STATE)
  return jax.eval_shape(checked_step(step, shapes), STATE, {})


def test_states_and_metrics_pass():
  def my_step(state, batch):
    metrics = LOSS | {"mine": 2, "norms": {"gradient/w": jnp.ones(4)}, "replaced_counts": jnp.ones(8)}
    return state.replace(step=state.step + 1, params=jax.tree.map(lambda x: 0.5 * x, state.params)), metrics

  state, metrics = trace(my_step)
  assert state.params["w"].shape == (2, 3) and set(metrics) == {"loss", "mine", "norms", "replaced_counts"}


@pytest.mark.parametrize(
  ("result", "message"),
  [
    (lambda state: state, r"my_step must return \(state, metrics\)\n  found +TrainState"),
    (lambda state: (state, LOSS, 1), r"my_step must return \(state, metrics\)"),
    (lambda state: (state, {"accuracy": 1.0}), "the metrics of my_step lack 'loss'\n  found +accuracy"),
    (lambda state: (state, LOSS | {"mine": jnp.ones(4)}), r"the metric 'mine' of my_step .*\n  found +float32\[4\]"),
    (lambda state: (state, LOSS | {"mine": "high"}), "the metric 'mine' of my_step must be a number\n  found +str"),
    (lambda state: (state.replace(params={"w": state.params["w"]}), LOSS),
     r"field +params/b\n  expected +float32\[3\]\n  found +no such field"),
    (lambda state: (state.replace(opt_state=(jnp.ones(3), jnp.ones(2))), LOSS),
     r"field +opt_state/1\n  expected +no such field\n  found +float32\[2\]"),
    (lambda state: (state.replace(params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.params)), LOSS),
     r"field +params/b\n  expected +float32\[3\]\n  found +bfloat16\[3\]"),
  ],
)  # fmt: skip
def test_other_results_are_errors(result, message):
  def my_step(state, batch):
    return result(state)

  with pytest.raises(UserError, match=message):
    trace(my_step)
