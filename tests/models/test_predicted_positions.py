"""BERT predicts only positions that have a target, and says so loudly where there are too many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.models.bert import _at_targets, predictions_of_a_row
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


def test_loss_metrics_and_gradients_are_those_of_all_positions(bert, batch):
  built = bert(nsp_head=False)
  (whole, metrics), gradients = losses(built, batch, 1.0)
  (part, part_metrics), part_gradients = losses(built, batch, 0.3)  # 8 of 24 positions
  np.testing.assert_allclose(part, whole, rtol=1e-6)
  assert part_metrics["target_tokens"] == metrics["target_tokens"] == 6.5
  assert part_metrics["accuracy"] == metrics["accuracy"]
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), part_gradients, gradients)


def test_more_targets_than_predictions_are_not_lost_in_silence(bert, batch):
  batch["encoder_loss_weights"][1, :9] = 1.0  # 10 in a row of 8 predictions
  assert jnp.isnan(losses(bert(nsp_head=False), batch, 0.3)[0][0])


def test_as_many_targets_as_predictions_are_all_predicted():
  """Eight targets in a row of eight predictions, and nine in another; negative weights are targets as well."""
  hidden = jnp.arange(32.0).reshape(2, 16, 1)
  weights = np.zeros((2, 16), np.float32)
  weights[0, 8:], weights[1, :9] = -0.5, 1.0
  positions, there = _at_targets(hidden, jnp.asarray(weights), 0.5)
  assert sorted(positions[0].tolist()) == list(range(8, 16))
  np.testing.assert_array_equal(there[0, :, 0], positions[0])
  assert np.isnan(there[1]).all()


def test_all_positions_are_predicted_where_nothing_is_trained(bert, batch):
  model = bert(nsp_head=False).model.clone(predicted_share=0.3)
  tokens = {"encoder_input_tokens": batch["encoder_input_tokens"]}
  for given, deterministic, count in ((batch, True, 24), (batch, False, 8), (tokens, False, 24)):
    outputs, _ = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), given, deterministic))  # noqa: B023
    assert outputs["logits"].shape == (3, count, 50) and ("predicted" in outputs) == (count == 8)


@pytest.mark.parametrize("share", [0.15, 0.16, 0.07, 0.5])
def test_a_share_that_is_the_objectives_leaves_no_target_out(share):
  """objectives/bert_mlm.gin sets them alike. Rows of all lengths have their targets counted by the objective itself."""
  for longest in (*range(8, 130), 509, 512):
    texts = Ragged(np.ones((longest, longest), np.int32), np.arange(1, longest + 1))
    counts = MaskedLM(noise_density=share).counts(texts, np.ones((longest, longest), bool))
    assert counts.max() <= predictions_of_a_row(share, longest) <= share * longest + 8
