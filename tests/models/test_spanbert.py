"""SpanBERT's span-boundary loss, by hand in numpy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.errors import UserError
from t5like.models import BERT, SpanBERT, TransformerConfig
from t5like.models.shapes import boxed_shapes
from t5like.models.spanbert import find_spans
from t5like.training.losses import LossSettings, divisors, evaluation_sums, loss_and_metrics

CONFIG = TransformerConfig(
  vocab_size=30, embed_dim=8, mlp_dim=12, num_heads=2, num_encoder_layers=1, activation="gelu", norm="layer",
  norm_epsilon=1e-5, norm_position="post", use_bias=True, scale_attention=True, positions="learned", max_positions=16,
  embedding_norm=True, scale_logits=False, mlm_head=True, final_dropout=False,
)  # fmt: skip
MODEL = SpanBERT(CONFIG, span_positions=3, position_dim=5)


@pytest.fixture(scope="module")
def params():
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: rng.normal(0.0, 0.5, x.shape).astype(x.dtype), nn.unbox(boxed_shapes(MODEL)))


@pytest.fixture(scope="module")
def batch():
  """Spans (2, 3), (6, 9) of which three tokens count, and in the second row (0, 1) at its start and (4,)."""
  rng, weights = np.random.default_rng(1), np.zeros((2, 12), np.float32)
  weights[0, [2, 3, 6, 7, 8, 9]], weights[1, [0, 1, 4]] = 1.0, 1.0
  return {
    "encoder_input_tokens": rng.integers(5, 30, (2, 12)).astype(np.int32),
    "encoder_target_tokens": rng.integers(5, 30, (2, 12)).astype(np.int32),
    "encoder_loss_weights": weights,
  }


def run(model, params, batch, deterministic):
  apply = lambda params: model.apply({"params": params}, batch, deterministic)  # noqa: E731
  return jax.jit(apply, compiler_options={"xla_backend_optimization_level": 0})(params)


def by_hand(params, hidden, targets):
  """Returns the loss of (row, position): (before, after, number), from the states of an encoder."""
  head = jax.tree.map(lambda x: np.asarray(x, np.float64), params["boundary_head"])
  table = np.asarray(params["token_embedder"]["embedding"], np.float64)
  gelu = lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # noqa: E731
  losses = []
  for row, place, before, after, number in (
    (0, 2, 1, 4, 0), (0, 3, 1, 4, 1), (0, 6, 5, 10, 0), (0, 7, 5, 10, 1), (0, 8, 5, 10, 2), (1, 4, 3, 5, 0)
  ):  # fmt: skip
    x = np.concatenate([hidden[row, before], hidden[row, after], head["position_embedding"][number]])
    for n in (0, 1):
      x = gelu(x @ head[f"dense_{n}"]["kernel"] + head[f"dense_{n}"]["bias"])
      x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * head[f"norm_{n}"]["scale"] + head[f"norm_{n}"]["bias"]
    logits = table @ x + head["bias"]
    losses.append(np.log(np.exp(logits).sum()) - logits[targets[row, place]])
  return losses


def test_the_boundary_loss_by_hand_for_all_and_for_predicted_positions(params, batch):
  outputs = run(MODEL, params, batch, True)
  losses = by_hand(params, np.asarray(outputs["hidden_states"], np.float64), batch["encoder_target_tokens"])
  sums = evaluation_sums(outputs, batch)
  np.testing.assert_allclose(sums["boundary_loss"], sum(losses), rtol=1e-4)
  assert sums["boundary_loss_count"] == 6 and sums["target_tokens"] == 9
  weighted = MODEL.clone(predicted_share=0.6, boundary_weight=3.0)
  some = run(weighted, params, batch, False)
  assert some["logits"].shape[1] == 8
  for model, given, weight in ((MODEL, outputs, 1.0), (weighted, some, 3.0)):
    divide_by = divisors(batch, LossSettings())._replace(auxiliary=model.auxiliary_counts(batch))
    loss, metrics = loss_and_metrics(given, batch, LossSettings(z_loss=0.0), divide_by)
    np.testing.assert_allclose(metrics["boundary_loss"], np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(loss, metrics["loss"] / 9 + weight * np.mean(losses), rtol=1e-4)


def test_spans_are_runs_of_predicted_tokens_with_a_token_on_either_side():
  weights = np.array([[1, 0, 1, 1, 1, 0, 1]], np.float32)
  spans, counted = find_spans(jnp.asarray(weights), 2)
  assert counted.tolist() == [[0, 0, 1, 1, 0, 0, 0]]  # not at the ends, not the third of a span
  assert spans[0, 2].tolist() == [1, 5, 0] and spans[0, 3].tolist() == [1, 5, 1]


def test_the_encoder_is_a_bert(params, batch):
  plain = {name: part for name, part in params.items() if name != "boundary_head"}
  shapes = nn.unbox(boxed_shapes(BERT(CONFIG)))
  assert jax.tree.structure(shapes) == jax.tree.structure(plain)
  text = {"encoder_input_tokens": batch["encoder_input_tokens"]}
  one, two = run(BERT(CONFIG), plain, text, True), run(MODEL, params, text, True)
  np.testing.assert_allclose(one["logits"], two["logits"], rtol=1e-6)


def test_invalid_settings():
  with pytest.raises(UserError, match="invalid SpanBERT.span_positions: 0"):
    boxed_shapes(MODEL.clone(span_positions=0))
