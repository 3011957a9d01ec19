"""The state that a recurrent model carries from batch to batch is part of the train state and of checkpoints."""

import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.models.recurrent import AWDLSTM, AWDLSTMConfig
from t5like.parallel import MeshAxes
from t5like.training.checkpoints import Checkpoints, find_checkpoint, restore_state
from t5like.training.optimizers import adamw
from t5like.training.state import create_state, state_spec
from t5like.training.step import LossSettings, compile_train_step

ROWS, LENGTH, STEPS = 8, 5, 4


def batch(step: int) -> dict[str, np.ndarray]:
  tokens = np.random.default_rng(step).integers(0, 11, (ROWS, LENGTH + 1)).astype(np.int32)
  return {
    "decoder_input_tokens": tokens[:, :-1], "decoder_target_tokens": tokens[:, 1:],
    "decoder_loss_weights": np.ones((ROWS, LENGTH), np.float32),
    "decoder_continues": np.full(ROWS, step != 3, np.int32) if step else np.zeros(ROWS, np.int32),
  }  # fmt: skip


@pytest.fixture(scope="module")
def run():
  model = AWDLSTM(AWDLSTMConfig(11, 4, 6, 2))
  optimizer, mesh = adamw(learning_rate=0.1), parallel.make_mesh(MeshAxes(data=-1))
  spec = state_spec(model, optimizer, batch(0), mesh)
  step = compile_train_step(model, optimizer, LossSettings(z_loss=0.0), spec, batch(0), mesh)
  new = lambda: create_state(model, optimizer, batch(0), 7, spec)  # noqa: E731
  return model, spec, step, new


def advance(run, state, steps):
  sharding = parallel.batch_sharding(jax.tree.leaves(run[1].shardings.params)[0].mesh)
  for number in steps:
    state, metrics = run[2](state, jax.device_put(batch(number), sharding))
    assert metrics["activation_loss"] > 0 and metrics["temporal_loss"] > 0 and "carry" not in metrics
  return state


def test_a_restored_run_continues_to_the_same_bytes(run, tmp_path):
  whole = advance(run, run[3](), range(STEPS))
  half = advance(run, run[3](), range(2))
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(half, {"model": "x"})
  restored = restore_state(find_checkpoint(tmp_path), run[1], {"model": "x"})
  assert len(jax.tree.leaves(restored.carry)) == 4 and all(np.any(x) for x in jax.tree.leaves(restored.carry))
  for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(advance(run, restored, range(2, STEPS))), strict=True):
    np.testing.assert_array_equal(a, b)


def test_a_step_that_is_not_finite_keeps_the_carry(run):
  state = advance(run, run[3](), [0])
  kept = jax.tree.map(np.array, state.carry)  # the step takes the state's memory
  too_much = batch(1) | {"decoder_loss_weights": np.full((ROWS, LENGTH), 3e38, np.float32)}
  sharding = parallel.batch_sharding(jax.tree.leaves(run[1].shardings.params)[0].mesh)
  state, metrics = run[2](state, jax.device_put(too_much, sharding))
  assert float(metrics["finite"]) == 0.0 and int(state.step) == 2
  for a, b in zip(jax.tree.leaves(state.carry), jax.tree.leaves(kept), strict=True):
    np.testing.assert_array_equal(a, b)


def test_the_carry_is_the_models_state_and_starts_over_where_a_text_does(run):
  """A model without dropout, whose parameters a step does not change: the next carry is what it computes."""
  model = AWDLSTM(
    AWDLSTMConfig(
      11, 4, 6, 2, embedding_dropout=0.0, input_dropout=0.0, hidden_dropout=0.0, weight_dropout=0.0, output_dropout=0.0
    )
  )
  params = run[3]().params
  carry = run[0].initial_carry(ROWS)
  both = {name: np.concatenate([batch(1)[name], batch(2)[name]], axis=1) for name in ("decoder_input_tokens",)}
  apply = jax.jit(model.apply)
  whole = apply({"params": params}, both | {"decoder_continues": np.zeros(ROWS)}, carry=carry)
  for step in (1, 2):
    given = batch(step) | {"decoder_continues": np.full(ROWS, step == 2)}
    outputs = apply({"params": params}, given, carry=carry)
    carry = outputs["carry"]
  for a, b in zip(jax.tree.leaves(whole["carry"]), jax.tree.leaves(carry), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)
  np.testing.assert_allclose(outputs["logits"], whole["logits"][:, LENGTH:], atol=1e-5)
  fresh = apply({"params": params}, batch(3) | {"decoder_continues": np.zeros(ROWS)}, carry=carry)
  alone = apply({"params": params}, batch(3))
  np.testing.assert_allclose(fresh["logits"], alone["logits"], atol=1e-6)


def test_dropout_has_one_mask_for_all_positions_and_words(run):
  """Rates of 0.5: a dropped word is 0 in all its places, a dropped input feature at all positions of a row."""
  from t5like.models.recurrent.awd_lstm import VariationalDropout, WordDropout

  x = np.ones((4, 6, 5), np.float32)
  dropped = VariationalDropout(0.5).apply({}, x, False, rngs={"dropout": jax.random.key(0)})
  assert set(np.unique(dropped)) == {0.0, 2.0} and np.array_equal(dropped, np.broadcast_to(dropped[:, :1], x.shape))
  tokens = np.arange(24).reshape(4, 6) % 8
  words = WordDropout(0.5).apply({}, x, tokens, 8, False, rngs={"dropout": jax.random.key(1)})
  by_word = [np.unique(words[tokens == word]) for word in range(8)]
  assert all(len(values) == 1 for values in by_word) and {float(v[0]) for v in by_word} == {0.0, 2.0}
