"""Sentence embeddings: losses against sentence-transformers, pooling by hand, and the negatives of the global batch."""

import dataclasses
import functools
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_parameters import random_parameters
from test_heads import BACKBONES, initialized

from t5like import parallel
from t5like.errors import UserError
from t5like.models.heads import SENTENCE_POOLINGS, EmbeddingHead, attach_head
from t5like.models.heads.sentence_losses import cosent_sums, ranking_sums, text_hashes, triplet_sums
from t5like.models.heads.states import Features, pool
from t5like.training.losses import LossSettings
from t5like.training.state import TrainState
from t5like.training.step import eval_step, loss_and_gradients

GOLDEN = np.load(Path(__file__).parents[2] / "data" / "golden" / "sentence_losses.npz")


def batch_of(texts):
  """A batch [rows, texts, length] of tokens."""
  tokens = np.asarray(texts, np.int32)
  real = tokens > 0
  positions = np.where(real, np.arange(tokens.shape[-1], dtype=np.int32), 0).astype(np.int32)
  return {
    "encoder_input_tokens": tokens, "encoder_segment_ids": real.astype(np.int32), "encoder_positions": positions,
    "encoder_token_types": np.zeros_like(tokens),
  }  # fmt: skip


def different_texts(rows, texts, length=6, seed=0):
  tokens = np.random.default_rng(seed).integers(2, 31, (rows, texts, length)).astype(np.int32)
  tokens[:, :, 4:] *= np.random.default_rng(seed).integers(0, 2, (rows, texts, 1))
  return tokens


@pytest.mark.parametrize("case", ["softmax", "cosine", "cosent", "triplet", "ranking_pairs", "ranking_triplets"])
def test_losses_and_gradients_are_those_of_sentence_transformers(case):
  loss, labels = case.partition("_")[0], ("a", "b", "c")
  texts = GOLDEN[f"{case}_gradient"].shape[1]
  head = EmbeddingHead(loss, texts=texts, labels=labels, score_range=(0.0, 1.0))
  batch = batch_of(different_texts(6, texts))
  batch["labels"] = GOLDEN["classes" if loss == "softmax" else "scores"]

  def mean_loss(embeddings):
    outputs = {"embeddings": embeddings}
    if loss == "softmax":
      u, v = embeddings[:, 0], embeddings[:, 1]
      joined = jnp.concatenate([u, v, jnp.abs(u - v)], axis=1)
      outputs["label_logits"] = joined @ GOLDEN["kernel"] + GOLDEN["bias"][None]
    return head.sums(outputs, batch, jnp.ones(6))["loss"] / 6

  value, gradient = jax.jit(jax.value_and_grad(mean_loss))(jnp.asarray(GOLDEN["embeddings"][:, :texts]))
  np.testing.assert_allclose(value, GOLDEN[f"{case}_loss"], rtol=1e-5)
  np.testing.assert_allclose(gradient, GOLDEN[f"{case}_gradient"], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_softmax_reads_both_vectors_and_their_difference():
  """The head's own logits, against its parameters by hand."""
  model = attach_head(BACKBONES["bert"], EmbeddingHead("softmax", texts=2, labels=("a", "b", "c")))
  batch = batch_of(different_texts(3, 2))
  params = nn.unbox(initialized(model, batch)["params"])
  outputs = model.apply({"params": params}, batch)
  u, v = np.swapaxes(outputs["embeddings"], 0, 1)
  out = params["head"]["out"]
  expected = np.concatenate([u, v, np.abs(u - v)], axis=1) @ out["kernel"] + out["bias"][None]
  np.testing.assert_allclose(outputs["label_logits"], expected, rtol=1e-5, atol=1e-6)


def test_poolings_by_hand():
  states = np.array([[[1.0, -4.0], [3.0, -2.0], [100.0, 100.0]], [[5.0, 1.0], [2.0, 2.0], [3.0, 9.0]]], np.float32)
  valid = np.array([[True, True, False], [True, True, True]])
  expected = {
    "cls": [[1, -4], [5, 1]],
    "mean": [[2, -3], [10 / 3, 4]],
    "max": [[3, -2], [5, 9]],
    "last": [[3, -2], [3, 9]],
    "mean_sqrt_length": [[4 / 2**0.5, -6 / 2**0.5], [10 / 3**0.5, 12 / 3**0.5]],
    "weighted_mean": [[(1 + 6) / 3, (-4 - 4) / 3], [(5 + 4 + 9) / 6, (1 + 4 + 27) / 6]],
  }
  assert expected.keys() == set(SENTENCE_POOLINGS)
  features = Features(BACKBONES["bert"].config, jnp.asarray(states), jnp.asarray(valid))
  for pooling, vectors in expected.items():
    np.testing.assert_allclose(pool(features, features.states, pooling), vectors, rtol=1e-6, err_msg=pooling)


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_dense_layer_and_normalization_on_every_backbone(name):
  """Rows of texts and single texts have the same embeddings; T5 has no decoder, and padding does not matter."""
  head = EmbeddingHead("ranking", "max+last", dense_dim=6, normalize=True, texts=2, training_mlp=True)
  model = attach_head(BACKBONES[name], head)
  texts = different_texts(3, 2)
  params = nn.unbox(initialized(model, batch_of(texts)))
  assert "decoder" not in params["params"]["backbone"] or name == "gpt"
  assert set(params["params"]["head"]) == {"dense", "training_mlp"}
  pairs = model.apply(params, batch_of(texts))["embeddings"]
  assert pairs.shape == (3, 2, 6) == (3, 2, head.width(8))
  np.testing.assert_allclose(np.linalg.norm(pairs, axis=-1), 1.0, rtol=1e-5)
  padded = np.pad(texts.reshape(6, -1), ((0, 0), (0, 4)))
  single = model.apply(params, batch_of(padded))["embeddings"]
  np.testing.assert_allclose(single, pairs.reshape(6, 6), rtol=1e-4, atol=1e-5)
  trained = model.apply(params, batch_of(texts), deterministic=False, rngs={"dropout": jax.random.key(0)})
  assert np.max(np.abs(trained["embeddings"] - pairs)) > 1e-3  # the layer that only training uses


def test_several_negatives_and_filler_rows_by_hand():
  """Positives at a distance of 1; negatives at 3 and 1/2, then 2 and 3. The last row does not count."""
  points = [[[0, 0], [1, 0], [3, 0], [0, 0.5]], [[0, 0], [0, 1], [2, 0], [0, 3]], [[0, 0]] * 4]
  weights = jnp.array([1.0, 1.0, 0.0])
  triplets = triplet_sums(jnp.array(points, jnp.float32), weights, 1.0)
  assert {name: float(x) for name, x in triplets.items()} == pytest.approx(
    {"loss": (0 + 1.5) / 2, "accuracy": 1, "target_tokens": 2}, abs=1e-5
  )
  # Cosines of 1 and 0 in the wrong order, once for each of two rows; the third would be last.
  pairs = jnp.array([[[1, 0], [1, 0]], [[1, 0], [0, 1]], [[1, 0], [-1, 0]]], jnp.float32)
  found = cosent_sums(pairs, jnp.array([0.0, 1.0, 2.0]), weights, 2.0)
  assert float(found["loss"]) == pytest.approx(2 * np.log(1 + np.exp(2)))


def test_scores_are_scaled_to_cosines():
  """4 and 2 of 1 to 5 are 3/4 and 1/4, for cosines of 1 and 0."""
  head = EmbeddingHead("cosine", texts=2, score_range=(1.0, 5.0))
  pairs = {"embeddings": jnp.array([[[1, 0], [1, 0]], [[1, 0], [0, 1]]], jnp.float32)}
  sums = head.sums(pairs, {"labels": jnp.array([4.0, 2.0])}, jnp.ones(2))
  assert float(sums["loss"]) == pytest.approx(2 / 16)


def test_equal_texts_are_not_negatives():
  """Row 1 repeats the anchor of row 0, row 2 its positive, row 3 has row 0's anchor as a negative; row 4 is filler."""
  rng = np.random.default_rng(0)
  tokens = different_texts(5, 3)
  tokens[1, 0], tokens[2, 1], tokens[3, 2], tokens[4] = tokens[0, 0], tokens[0, 1], tokens[0, 0], 0
  vectors = rng.normal(size=(5, 3, 4)).astype(np.float32)
  weights = np.array([1, 1, 1, 1, 0], np.float32)
  sums = jax.jit(lambda vectors, batch: ranking_sums(vectors, text_hashes(batch), jnp.asarray(weights), 20.0))
  found = sums(vectors, batch_of(tokens))

  unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
  texts, total = [[row.tobytes() for row in texts] for texts in tokens], 0.0
  for i in range(4):
    own, negatives = 20 * unit[i, 0] @ unit[i, 1], []
    for j in range(4):
      for column in (1, 2):
        same_text = texts[j][column] in (texts[i][0], texts[i][1])
        same_anchor = column == 1 and texts[j][0] == texts[i][0]
        if (i, 1) != (j, column) and not same_text and not same_anchor:
          negatives.append(20 * unit[i, 0] @ unit[j, column])
    assert len(negatives) == (4, 5, 6, 7)[i]
    total += np.log(np.sum(np.exp([own, *negatives]))) - own
  np.testing.assert_allclose(found["loss"], total, rtol=1e-5)
  assert float(found["target_tokens"]) == 4


@functools.cache
def ranking_model(loss="ranking", texts=3):
  return attach_head(BACKBONES["bert"], EmbeddingHead(loss, texts=texts))


def trained_values(model, params, batch, microbatches=1, devices=None):
  state = TrainState(step=jnp.int32(0), params=params, opt_state=None, seed=jnp.uint32(0))
  step = lambda s, b: loss_and_gradients(model, LossSettings(microbatches=microbatches), s, b)  # noqa: E731
  if devices is None:
    return jax.jit(step)(state, batch)
  mesh = parallel.make_mesh(parallel.MeshAxes(data=devices), jax.devices()[:devices])
  with parallel.sharding_context(mesh):
    sharded = jax.device_put(batch, parallel.batch_sharding(mesh))
    return jax.jit(step)(state, sharded)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("loss", "texts"), [("ranking", 3), ("cosent", 2)])
def test_negatives_are_those_of_the_global_batch(loss, texts):
  """The same loss and gradients on one device, on eight, and in microbatches on two."""
  model, batch = ranking_model(loss, texts), batch_of(different_texts(16, texts))
  batch["labels"] = np.linspace(0, 5, 16, dtype=np.float32)
  params = random_parameters(model, batch)
  value, metrics, gradients = trained_values(model, params, batch)
  part_loss = jax.jit(lambda params, rows: model.loss(model.apply({"params": params}, rows), rows, LossSettings())[0])
  halves = [part_loss(params, {name: x[rows] for name, x in batch.items()}) for rows in (slice(0, 8), slice(8, 16))]
  assert abs(np.mean(halves) - float(value)) > 0.1  # another loss than the mean of smaller batches
  for settings in (dict(devices=8), dict(microbatches=4, devices=2)):
    other, other_metrics, other_gradients = trained_values(model, params, batch, **settings)
    np.testing.assert_allclose(other, value, rtol=1e-5)
    assert {k: float(v) for k, v in other_metrics.items()} == pytest.approx({k: float(v) for k, v in metrics.items()})
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=2e-6), other_gradients, gradients)


def test_evaluation_compares_all_rows_of_a_batch_in_microbatches():
  model, batch = ranking_model(), batch_of(different_texts(8, 3))
  params = random_parameters(model, batch)
  full, parts = (jax.jit(functools.partial(eval_step, model, LossSettings(microbatches=n)))(params, batch)
                 for n in (1, 4))  # fmt: skip
  assert {k: float(v) for k, v in parts.items()} == pytest.approx({k: float(v) for k, v in full.items()}, rel=1e-5)


@pytest.mark.slow
def test_simcse_compares_two_dropout_masks_of_one_text():
  backbone = BACKBONES["bert"].clone(config=dataclasses.replace(BACKBONES["bert"].config, dropout_rate=0.1))
  text = different_texts(4, 1)
  batch = batch_of(np.repeat(text, 2, axis=1))
  model = attach_head(backbone, EmbeddingHead("simcse", "cls", texts=2))
  params = {"params": random_parameters(model, batch)}
  dropped = model.apply(params, batch, deterministic=False, rngs={"dropout": jax.random.key(1)})["embeddings"]
  plain = model.apply(params, batch)["embeddings"]
  np.testing.assert_allclose(plain[:, 0], plain[:, 1], rtol=1e-5, atol=1e-6)
  assert np.min(np.max(np.abs(dropped[:, 0] - dropped[:, 1]), axis=-1)) > 1e-3


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    (dict(loss="rankin"), "invalid EmbeddingHead.loss: 'rankin'"),
    (dict(pooling="cls+meen"), "invalid EmbeddingHead.pooling: 'meen'"),
    (dict(loss="triplet", texts=2), "the loss 'triplet' does not take 2 texts per row"),
    (dict(scale=0.0), "invalid EmbeddingHead.scale: 0.0"),
    (dict(dense_activation="relux"), "invalid EmbeddingHead.dense_activation"),
    (dict(score_range=(5.0, 0.0)), "invalid EmbeddingHead.score_range"),
    (dict(loss="softmax", texts=2), "invalid EmbeddingHead.labels"),
  ],
)
def test_invalid_settings(settings, message):
  with pytest.raises(UserError, match=message.replace("(", r"\(")):
    attach_head(BACKBONES["bert"], EmbeddingHead(**settings))


def test_the_first_token_of_a_causal_model_is_refused():
  with pytest.raises(UserError, match="the first token of GPT does not read the others"):
    attach_head(BACKBONES["gpt"], EmbeddingHead(pooling="cls"))
