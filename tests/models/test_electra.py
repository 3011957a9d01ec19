"""ELECTRA: both models against transformers, the samples between them, and the loss of both."""

import dataclasses
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like import parallel
from t5like.errors import UserError
from t5like.inference.encodings import MaskFiller
from t5like.interop.layouts import flatten, unflatten
from t5like.models import BERT, ELECTRA, TransformerConfig
from t5like.models.electra import corrupt, count_by_probability, detection_loss
from t5like.models.shapes import boxed_shapes
from t5like.training.detection import detection_scores
from t5like.training.losses import LossSettings, divisors, evaluation_sums, loss_and_metrics
from t5like.training.state import TrainState
from t5like.training.step import loss_and_gradients

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "electra.npz"
CONFIG = TransformerConfig(
  vocab_size=41, embed_dim=16, mlp_dim=24, num_heads=2, num_encoder_layers=2, activation="gelu_erf", norm="layer",
  norm_epsilon=1e-12, norm_position="post", use_bias=True, scale_attention=True, positions="learned", max_positions=12,
  num_token_types=2, embedding_norm=True, scale_logits=False, mlm_head=True, final_dropout=False,
)  # fmt: skip
MODEL = ELECTRA(CONFIG, generator_share=0.5)
SHALLOW = MODEL.clone(config=dataclasses.replace(CONFIG, num_encoder_layers=1))  # for gradients: compiles faster


@pytest.fixture(scope="module")
def golden():
  return dict(np.load(GOLDEN))


@pytest.fixture(scope="module")
def params(golden):
  arrays = {name.removeprefix("params/"): x for name, x in golden.items() if name.startswith("params/")}
  return unflatten(arrays)


@pytest.fixture(scope="module")
def batch(golden):
  """Rows of nine and six tokens, of which a third is predicted."""
  weights = golden["replaced"] * golden["mask"]
  return {
    "encoder_input_tokens": np.where(weights > 0, 4, golden["tokens"]).astype(np.int32),
    "encoder_target_tokens": golden["tokens"].astype(np.int32),
    "encoder_loss_weights": weights.astype(np.float32),
    "encoder_segment_ids": golden["mask"].astype(np.int32),
  }


def compiled(function):
  """Compiles without XLA's slower optimizations, because these models run once."""
  return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="module")
def step():
  """Returns (loss, metrics, gradients) of a batch at a step of a run with a seed."""
  state = lambda params, seed, step: TrainState(jnp.int32(step), params, (), jnp.uint32(seed))  # noqa: E731
  run = lambda params, batch, seed, step: loss_and_gradients(  # noqa: E731
    SHALLOW, LossSettings(z_loss=0.0), state(params, seed, step), batch
  )
  return compiled(run)


@pytest.fixture(scope="module")
def evaluated(params):
  """Returns the outputs of a batch without dropout."""
  run = compiled(lambda params, batch: MODEL.apply({"params": params}, batch))
  return lambda batch: run(params, batch)


def test_both_models_and_the_loss_of_the_discriminator_as_in_transformers(golden, evaluated):
  given = {"encoder_input_tokens": golden["tokens"].astype(np.int32), "encoder_segment_ids": golden["mask"]}
  outputs = evaluated(given)
  real = golden["mask"] > 0
  np.testing.assert_allclose(outputs["logits"][real], golden["logits"][real], atol=1e-4)
  np.testing.assert_allclose(outputs["replaced_logits"][real], golden["replaced_logits"][real], atol=1e-4)
  losses = detection_loss(outputs["replaced_logits"], golden["replaced"] > 0)
  np.testing.assert_allclose(losses[real].mean(), golden["discriminator_loss"], rtol=1e-5)


def test_the_parameters_are_those_of_a_headless_bert_a_generator_and_a_head(params):
  shapes = {path: x.shape for path, x in flatten(nn.unbox(boxed_shapes(MODEL))).items()}
  assert shapes == {path: x.shape for path, x in flatten(params).items()}
  headless = BERT(dataclasses.replace(CONFIG, mlm_head=False))
  own = {path for path in shapes if not path.startswith(("generator/", "discriminator_head/"))}
  assert own == set(flatten(nn.unbox(boxed_shapes(headless))))


def test_the_loss_is_that_of_the_generator_plus_fifty_times_that_of_the_discriminator(golden, params, batch, step):
  loss, metrics, gradients = step(params, batch, 3, 7)
  np.testing.assert_allclose(loss, metrics["loss"] / metrics["target_tokens"] + 50 * metrics["discriminator_loss"])
  assert float(metrics["replaced_counts"].sum()) == golden["mask"].sum()
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(gradients["generator"]["mlm_head"]))


def test_the_loss_of_the_discriminator_by_hand(golden, batch, evaluated):
  outputs = evaluated(batch)
  logits, replaced, real = (
    np.asarray(x, np.float64) for x in (outputs["replaced_logits"], outputs["replaced"], golden["mask"])
  )
  by_hand = -(replaced * np.log(1 / (1 + np.exp(-logits))) + (1 - replaced) * np.log(1 / (1 + np.exp(logits))))
  sums = evaluation_sums(outputs, batch)
  np.testing.assert_allclose(sums["discriminator_loss"], (by_hand * real).sum(), rtol=1e-5)
  assert float(sums["discriminator_loss_count"]) == real.sum() == 15


def test_samples_depend_on_seed_and_step_only(params, batch, step, evaluated):
  losses = [float(step(params, batch, seed, number)[0]) for seed, number in ((0, 5), (0, 5), (0, 6), (1, 5))]
  assert losses[0] == losses[1] and len(set(losses)) == 3
  np.testing.assert_array_equal(evaluated(batch)["replaced"], evaluated(batch)["replaced"])


def test_the_discriminator_sends_no_gradient_through_the_samples(params, batch):
  def loss(params):
    return jnp.sum(SHALLOW.apply({"params": params}, batch)["auxiliary"]["discriminator_loss"].losses)

  gradients = compiled(jax.grad(loss))(params)
  assert all(np.abs(x).max() == 0 for x in jax.tree.leaves(gradients["generator"]))
  assert np.abs(gradients["token_embedder"]["embedding"]).max() > 0


def test_only_chosen_tokens_are_replaced_by_samples_of_the_softmax(batch):
  chosen = batch["encoder_loss_weights"] > 0
  positions = np.broadcast_to(np.arange(9)[None], (2, 9))
  logits = np.zeros((2, 9, 41), np.float32)
  logits[..., [7, 30]] = 20.0, 20.0 + np.log(3)
  keys = jax.random.split(jax.random.key(0), 200)
  draw = jax.jit(jax.vmap(lambda key: corrupt(batch, jnp.asarray(logits), positions, key)))
  original, corrupted = map(np.asarray, draw(keys))
  assert (original == batch["encoder_target_tokens"]).all()
  np.testing.assert_array_equal(corrupted[:, ~chosen], original[:, ~chosen])
  drawn = corrupted[:, chosen].reshape(-1).tolist()
  assert set(drawn) == {7, 30}
  assert abs(drawn.count(30) / len(drawn) - 0.75) < 3.5 * (0.75 * 0.25 / len(drawn)) ** 0.5


def test_predicted_positions_are_the_only_ones_that_change(params, batch, evaluated):
  """The generator's loss is that of all positions; filler around the targets keeps its tokens."""
  part = MODEL.clone(predicted_share=0.5)
  some = compiled(lambda params: part.apply({"params": params}, batch, deterministic=False))(params)
  assert some["logits"].shape[1] == 8
  sums = [loss_and_metrics(outputs, batch, LossSettings())[1]["loss"] for outputs in (evaluated(batch), some)]
  np.testing.assert_allclose(*sums, rtol=1e-5)
  replaced, chosen = np.asarray(some["replaced"]), batch["encoder_loss_weights"] > 0
  assert replaced[chosen].any() and not replaced[~chosen].any()


def test_the_losses_of_microbatches_add_up_to_that_of_the_batch(batch, evaluated):
  outputs = evaluated(batch)
  (name,) = outputs["auxiliary"]
  settings = LossSettings()
  whole = divisors(batch, settings)._replace(auxiliary=MODEL.auxiliary_counts(batch))

  def half(row):
    rows = {k: v[row : row + 1] for k, v in batch.items()}
    term = outputs["auxiliary"][name]
    kept = {
      "logits": outputs["logits"][row : row + 1],
      "auxiliary": {name: term._replace(losses=term.losses[row : row + 1], weights=term.weights[row : row + 1])},
    }
    return loss_and_metrics(kept, rows, settings, whole)[0]

  np.testing.assert_allclose(half(0) + half(1), loss_and_metrics(outputs, batch, settings)[0], rtol=1e-6)


def test_filler_rows_of_an_evaluation_do_not_count(batch, evaluated):
  weights = batch["encoder_loss_weights"].copy()
  weights[1] = 0.0
  sums = evaluation_sums(evaluated(batch | {"encoder_loss_weights": weights}), batch)
  assert sums["discriminator_loss_count"] == sums["replaced_counts"].sum() == 9


def test_scores_of_detection_by_hand():
  probabilities = np.array([0.9, 0.8, 0.3, 0.6, 0.1, 0.2, 0.7, 0.999])
  replaced = np.array([1, 1, 1, 0, 0, 0, 0, 0], bool)
  logits = np.log(probabilities / (1 - probabilities)).astype(np.float32)
  weights = np.ones(8, np.float32)
  weights[-1] = 0.0  # padding
  counts = count_by_probability(jnp.asarray(logits), jnp.asarray(replaced), jnp.asarray(weights))
  scores = detection_scores(np.asarray(counts))
  # Reported: 0.9, 0.8, 0.6, 0.7. Of 12 pairs, 0.3 loses to 0.6 and 0.7.
  expected = {"accuracy": 4 / 7, "precision": 2 / 4, "recall": 2 / 3, "auc": 10 / 12}
  assert scores == pytest.approx({f"discriminator_{name}": value for name, value in expected.items()})
  # Two bins: an original token ties with a replaced one, which is half right, twice.
  assert list(detection_scores(np.array([[2, 0], [1, 1]])).values()) == [3 / 4, 1, 1 / 2, 3 / 4]
  nothing = np.zeros((2, 200))
  nothing[0, 3] = 5
  assert np.isnan(detection_scores(nothing)["discriminator_auc"])


def test_the_generator_is_a_quarter_as_wide_by_default():
  config = ELECTRA(dataclasses.replace(CONFIG, embed_dim=256, num_heads=4, head_dim=64)).generator_config
  assert (config.embed_dim, config.num_heads, config.head_dim, config.mlp_dim) == (64, 1, 64, 6)
  assert config.num_encoder_layers == 2
  tiny = ELECTRA(dataclasses.replace(CONFIG, embed_dim=128, head_dim=64)).generator_config
  assert (tiny.embed_dim, tiny.num_heads, tiny.head_dim) == (32, 1, 32)


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"generator_share": 0.0}, "generator_share"),
    ({"discriminator_weight": -1.0}, "discriminator_weight"),
    ({"embedding_sharing": "both"}, "embedding_sharing"),
  ],
)
def test_invalid_settings(changes, message):
  with pytest.raises(UserError, match=f"invalid ELECTRA.{message}"):
    MODEL.clone(**changes).check()


def test_a_pooler_is_refused():
  config = dataclasses.replace(CONFIG, pooler=True)
  with pytest.raises(UserError, match="no pooler"):
    jax.eval_shape(ELECTRA(config).init, jax.random.key(0), {"encoder_input_tokens": np.ones((1, 2), np.int32)})


def test_masks_are_filled_by_the_generator(golden, params):
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  tokens = golden["tokens"][0].tolist()
  ((_, ids),) = MaskFiller(MODEL, mesh, tokens[3], top=1)(params, [tokens])
  assert ids[:, 0].tolist() == golden["logits"][0].argmax(axis=-1)[np.equal(tokens, tokens[3])].tolist()


def test_disentangled_embeddings_start_as_tied_ones_and_separate_the_gradients(params, batch):
  """Of the table, the generator's loss trains the shared part only, the discriminator's the difference only."""
  apart = SHALLOW.clone(embedding_sharing="disentangled")
  delta = {name: np.zeros_like(x) for name, x in params["token_embedder"].items() if name != "norm"}
  given = {**params, "embedding_delta": delta}
  assert set(nn.unbox(boxed_shapes(apart))["embedding_delta"]) == set(delta)

  def losses(params):
    outputs = apart.apply({"params": params}, batch)
    detection = jnp.sum(outputs["auxiliary"]["discriminator_loss"].losses)
    return jnp.stack([detection, jnp.sum(outputs["logits"] ** 2)]), outputs["replaced_logits"]

  def run(given):
    _, pull_back, separate = jax.vjp(losses, given, has_aux=True)
    gradients = [pull_back(jnp.asarray(row))[0] for row in ([1.0, 0.0], [0.0, 1.0])]
    return separate, SHALLOW.apply({"params": given}, batch)["replaced_logits"], *gradients

  separate, tied, *gradients = compiled(run)(given)
  np.testing.assert_allclose(separate, tied, atol=1e-6)
  parts = ("token_embedder", "embedding_delta")
  for found, still, moves in zip(gradients, parts, reversed(parts), strict=True):
    assert np.abs(found[still]["embedding"]).max() == 0 < np.abs(found[moves]["embedding"]).max()
    assert np.abs(found[still]["position_embedding"]).max() == 0


def test_a_generator_of_factorized_embeddings_reads_and_predicts_at_their_width():
  """As in ELECTRA small: embeddings of 8, the discriminator 16 wide, the generator 4."""
  model = ELECTRA(dataclasses.replace(CONFIG, embedding_dim=8))
  shapes = {path: x.shape for path, x in flatten(nn.unbox(boxed_shapes(model))).items()}
  assert shapes["token_embedder/embedding"] == (41, 8) and shapes["token_embedder/project/kernel"] == (8, 16)
  assert shapes["generator/embedding_projection/kernel"] == (8, 4)
  assert shapes["generator/mlm_head/transform/kernel"] == (4, 8)
