"""BERT predicts only positions with a target, and the loss is NaN if there are too many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.models.bert import gather_targets, predictions_per_row
from t5like.objectives.masking import MaskedLM
from t5like.objectives.ragged import Ragged
from t5like.training.losses import LossSettings, loss_and_metrics


@pytest.fixture
def batch(tokens):
  weights = np.zeros((3, 24), np.float32)
  weights[0, [1, 5, 20]], weights[1, [23]], weights[2, [0, 2, 3, 9, 22]] = 1.0, 1.0, 0.5
  return {
    "encoder_input_tokens": tokens(3, 24),
    "encoder_target_tokens": tokens(3, 24),
    "encoder_loss_weights": weights,
  }


def losses(built, batch, share):
  model = built.model.clone(predicted_share=share)

  def loss(params):
    outputs = model.apply({"params": params}, batch, deterministic=False)
    return loss_and_metrics(outputs, batch, LossSettings())

  return built.jit(jax.value_and_grad(loss, has_aux=True))(built.params)


def test_loss_metrics_and_gradients_equal_those_of_all_positions(bert, batch):
  built = bert(nsp_head=False)
  (full, metrics), gradients = losses(built, batch, 1.0)
  (part, part_metrics), part_gradients = losses(built, batch, 0.3)  # 8 of 24 positions
  np.testing.assert_allclose(part, full, rtol=1e-6)
  assert part_metrics["target_tokens"] == metrics["target_tokens"] == 6.5
  assert part_metrics["accuracy"] == metrics["accuracy"]
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), part_gradients, gradients)


def test_more_targets_than_predictions_make_the_loss_nan(bert, batch):
  batch["encoder_loss_weights"][1, :9] = 1.0  # 10 in a row of 8 predictions
  assert jnp.isnan(losses(bert(nsp_head=False), batch, 0.3)[0][0])


def test_the_gradient_of_the_states_needs_no_sort():
  """XLA makes the sums of a scatter deterministic by sorting all their entries, unless indices are unique."""
  hidden, weights = jnp.ones((2, 16, 4)), jnp.zeros((2, 16)).at[:, 3].set(1.0)
  gradient = jax.grad(lambda hidden: gather_targets(hidden, weights, 0.5)[1].sum())
  (scatter,) = (line for line in str(jax.make_jaxpr(gradient)(hidden)).split("scatter-add[")[1:])
  assert "unique_indices=True" in scatter


def test_as_many_targets_as_predictions_are_all_predicted():
  """Eight targets in a row of eight predictions, and nine in another; negative weights count as targets."""
  hidden = jnp.arange(32.0).reshape(2, 16, 1)
  weights = np.zeros((2, 16), np.float32)
  weights[0, 8:], weights[1, :9] = -0.5, 1.0
  positions, states = gather_targets(hidden, jnp.asarray(weights), 0.5)
  assert sorted(positions[0].tolist()) == list(range(8, 16))
  np.testing.assert_array_equal(states[0, :, 0], positions[0])
  assert np.isnan(states[1]).all()


def test_all_positions_are_predicted_outside_of_training(bert, batch):
  model = bert(nsp_head=False).model.clone(predicted_share=0.3)
  tokens = {"encoder_input_tokens": batch["encoder_input_tokens"]}
  for given, deterministic, count in ((batch, True, 24), (batch, False, 8), (tokens, False, 24)):
    outputs, _ = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), given, deterministic))  # noqa: B023
    assert outputs["logits"].shape == (3, count, 50) and ("predicted" in outputs) == (count == 8)


@pytest.mark.parametrize("share", [0.15, 0.16, 0.07, 0.5])
def test_the_share_of_the_objective_covers_all_targets(share):
  """As objectives/bert_mlm.gin sets it; the objective counts the targets of rows of all lengths."""
  for longest in (*range(8, 130), 509, 512):
    texts = Ragged(np.ones((longest, longest), np.int32), np.arange(1, longest + 1))
    counts = MaskedLM(noise_density=share).counts(texts, np.ones((longest, longest), bool))
    assert counts.max() <= predictions_per_row(share, longest) <= share * longest + 8
