"""Heads on every backbone: shapes, parameters, losses and invariances, with tiny models."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_parameters import random_parameters

from t5like.errors import UserError
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.models.heads import (
  ClassificationHead,
  MultiLabelHead,
  MultipleChoiceHead,
  RegressionHead,
  SpanHead,
  TaggingHead,
  WithHead,
  attach_head,
)
from t5like.models.heads.states import Features
from t5like.training.losses import LossSettings

SMALL = dict(vocab_size=32, embed_dim=8, mlp_dim=16, num_heads=2)
BACKBONES = {
  "bert": BERT(
    TransformerConfig(
      **SMALL,
      num_encoder_layers=2,
      positions="learned",
      max_positions=16,
      num_token_types=2,
      use_bias=True,
      norm="layer",
      norm_position="post",
      embedding_norm=True,
      pooler=True,
      nsp_head=True,
      mlm_head=True,
      initializer="normal",
      initializer_stddev=0.5,
    )  # fmt: skip
  ),
  "t5": T5(TransformerConfig(**SMALL, num_encoder_layers=2, num_decoder_layers=1)),
  "gpt": GPT(TransformerConfig(**SMALL, num_decoder_layers=2)),
}
LENGTHS = (7, 5, 8, 6)


def batch_for(head, length=8):
  """Rows of different lengths with labels for the head."""
  tokens = np.zeros((4, length), np.int32)
  for row, count in enumerate(LENGTHS):
    tokens[row, :count] = 2 + (np.arange(count) * (row + 3)) % 29
  real = tokens > 0
  batch = {
    "encoder_input_tokens": tokens,
    "encoder_segment_ids": real.astype(np.int32),
    "encoder_positions": np.where(real, np.arange(length, dtype=np.int32)[None], 0).astype(np.int32),
    "encoder_token_types": np.zeros_like(tokens),
  }
  if head.form == "choices":
    return {name: x.reshape(2, 2, length) for name, x in batch.items()} | {"labels": np.array([1, 0], np.int32)}
  if head.form == "tagging":
    weights = np.zeros((4, length), np.float32)
    weights[:, 1:4] = 1.0
    return batch | {"encoder_target_tokens": tokens % 2, "encoder_loss_weights": weights}
  labels = {
    "classification": np.array([0, 2, 1, 1], np.int32),
    "multi_label": np.array([[0, 0, 0], [1, 0, 1], [0, 1, 0], [1, 1, 1]], np.int32),
    "regression": np.array([0.5, 1.0, -1.0, 3.0], np.float32),
    "spans": np.array([[0, 0], [1, 3], [2, 7], [5, 5]], np.int32),
  }
  return batch | {"labels": labels[head.form]}


def initialized(model, batch):
  return jax.jit(model.init)(jax.random.key(0), batch)


def loss_of(model):
  return jax.jit(lambda outputs, batch, divide_by=None: model.loss(outputs, batch, LossSettings(), divide_by)[0])


HEADS = [
  ClassificationHead(("a", "b", "c")),
  ClassificationHead(("a", "b", "c"), pooling="mean", mix_layers=True),
  MultiLabelHead(("a", "b", "c")),
  RegressionHead(pooling="max"),
  MultipleChoiceHead(2),
  TaggingHead(("O", "B"), mix_layers=True),
  SpanHead(),
]


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.form + "_mixed" * head.mix_layers)
@pytest.mark.parametrize("name", BACKBONES)
def test_shapes_and_losses(name, head):
  model = attach_head(BACKBONES[name], head)
  batch = batch_for(head)
  variables = initialized(model, batch)
  outputs = jax.jit(model.apply)(variables, batch)
  shapes = {
    "classification": (4, 3), "multi_label": (4, 3), "regression": (4, 1), "choices": (2, 2), "tagging": (4, 8, 2),
    "spans": (4, 8, 2),
  }  # fmt: skip
  (key,) = outputs
  assert key == ("span_logits" if head.form == "spans" else "label_logits") and outputs[key].shape == shapes[head.form]
  loss, metrics = model.loss(outputs, batch, LossSettings())
  np.testing.assert_allclose(loss, expected_loss(head, np.asarray(outputs[key], np.float64), batch), rtol=1e-5)
  sums = model.evaluation_sums(outputs, batch)
  np.testing.assert_allclose(sums["loss"] / sums["target_tokens"], loss, rtol=1e-5)
  assert set(metrics) == set(sums)
  parts = {"bert": {"token_embedder", "encoder"}, "t5": {"token_embedder", "encoder", "decoder"}}
  expected = parts.get(name, {"token_embedder", "decoder"}) - (
    {"decoder"} if name == "t5" and head.form == "tagging" else set()
  )
  if name == "bert" and model.head.pooling == "pooler":
    expected |= {"pooler"}
  assert set(variables["params"]["backbone"]) == expected and ("mix" in variables["params"]["head"]) == head.mix_layers


def expected_loss(head, logits, batch):
  """The loss by definition, in numpy."""
  log_softmax = lambda x: x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))  # noqa: E731
  if head.form == "multi_label":
    probabilities = 1 / (1 + np.exp(-logits))
    return -np.mean(np.log(np.where(batch["labels"] > 0, probabilities, 1 - probabilities)))
  if head.form == "regression":
    return np.mean((logits[:, 0] - batch["labels"]) ** 2)
  if head.form == "tagging":
    chosen = np.take_along_axis(log_softmax(logits), batch["encoder_target_tokens"][..., None], axis=-1)[..., 0]
    return -np.sum(chosen * batch["encoder_loss_weights"]) / np.sum(batch["encoder_loss_weights"])
  if head.form == "spans":
    rows = np.arange(len(logits))
    ends = [log_softmax(logits[..., side])[rows, batch["labels"][:, side]] for side in (0, 1)]
    return -np.mean(ends)
  return -np.mean(log_softmax(logits)[np.arange(len(logits)), batch["labels"]])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "last"])
def test_padding_changes_nothing(name, pooling):
  head = ClassificationHead(("a", "b", "c"), pooling=pooling)
  model = attach_head(BACKBONES[name], head)
  narrow, wide = batch_for(head), batch_for(head, length=12)
  variables = {"params": random_parameters(model, narrow)}
  one, two = (jax.jit(model.apply)(variables, batch)["label_logits"] for batch in (narrow, wide))
  np.testing.assert_allclose(one, two, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scan", [False, True])
def test_the_mix_of_layers_is_their_mean_at_the_start_and_any_layer_by_its_weight(scan):
  backbone = BACKBONES["bert"]
  backbone = backbone.clone(config=dataclasses.replace(backbone.config, scan_layers=scan))
  head = ClassificationHead(("a", "b", "c"), pooling="mean", mix_layers=True)
  mixed, last = attach_head(backbone, head), attach_head(backbone, head.clone(mix_layers=False))
  batch = batch_for(head)
  params = initialized(mixed, batch)["params"]
  weights = params["head"]["mix"]["weights"]
  assert weights.unbox().shape == (3,) and not np.any(weights.unbox())
  chosen = params | {"head": params["head"] | {"mix": params["head"]["mix"] | {"weights": jnp.array([0.0, 0.0, 60.0])}}}
  without = {"backbone": params["backbone"], "head": {"out": params["head"]["out"]}}
  np.testing.assert_allclose(
    jax.jit(mixed.apply)({"params": chosen}, batch)["label_logits"],
    jax.jit(last.apply)({"params": without}, batch)["label_logits"],
    atol=1e-5,
  )
  read = jax.jit(lambda params: backbone.apply({"params": params}, batch, all_layers=True, method="hidden_states"))
  states = read(params["backbone"])
  assert states.shape == (3, 4, 8, 8) and len(np.unique(np.asarray(states[:, 0, 0, 0]))) == 3


def test_the_weight_of_the_auxiliary_loss():
  """Uniform logits: log 3 for the classes, log 32 for the next tokens."""
  model = attach_head(BACKBONES["gpt"], ClassificationHead(("a", "b", "c"), lm_loss_weight=0.5))
  batch = batch_for(model.head)
  outputs = {"label_logits": jnp.zeros((4, 3)), "logits": jnp.zeros((4, 8, 32))}
  assert float(loss_of(model)(outputs, batch)) == pytest.approx(np.log(3) + 0.5 * np.log(32))


@pytest.mark.parametrize(
  ("hidden", "rate", "pooled_rate", "drops"),
  [(None, 0.0, 0.9, False), (None, 0.9, 0.0, True), ("tanh", 0.0, 0.9, True), ("tanh", 0.9, 0.0, True),
   ("tanh", 0.0, None, False)],
)  # fmt: skip
def test_dropout_before_the_dense_layer_of_a_head_may_have_its_own_rate(hidden, rate, pooled_rate, drops):
  head = ClassificationHead(("a", "b"), "cls", hidden, dropout_rate=rate, pooled_dropout_rate=pooled_rate)
  features = Features(BACKBONES["bert"].config, jnp.ones((9, 2, 8)), jnp.ones((9, 2), bool))
  run = jax.jit(lambda key: head.init_with_output({"params": key, "dropout": key}, features, False)[0]["label_logits"])
  plain = jax.jit(lambda key: head.init_with_output(key, features)[0]["label_logits"])
  assert np.allclose(run(jax.random.key(0)), plain(jax.random.key(0))) != drops


def test_losses_of_scores_and_spans_by_hand():
  weights = jnp.array([1.0, 1.0, 0.0])  # the last row is filler
  scores = {"label_logits": jnp.array([[1.0], [2.5], [9.0]])}
  sums = RegressionHead().sums(scores, {"labels": jnp.array([3.0, 2.0, 0.0])}, weights)
  assert (float(sums["loss"]), float(sums["target_tokens"])) == (2**2 + 0.5**2, 2)
  # Starts have probabilities of 1/2, 1/4 and 1/4, ends of 1/4, 1/4 and 1/2.
  spans = {"span_logits": jnp.log(jnp.tile(jnp.array([[[2.0, 1.0], [1.0, 1.0], [1.0, 2.0]]]), (3, 1, 1)))}
  sums = SpanHead().sums(spans, {"labels": jnp.array([[0, 2], [0, 1], [0, 2]])}, weights)
  assert float(sums["loss"]) == pytest.approx(np.log(2) + (np.log(2) + np.log(4)) / 2)
  assert (float(sums["accuracy"]), float(sums["target_tokens"])) == (1, 2)


def test_smoothed_labels_by_hand():
  """Probabilities of 1/2 and 3/4, for targets of 0.9 and 0.1."""
  outputs = {"label_logits": jnp.log(jnp.array([[1.0, 3.0]]))}
  sums = MultiLabelHead(("a", "b")).sums(outputs, {"labels": jnp.array([[1, 0]])}, jnp.ones(1), label_smoothing=0.2)
  losses = -np.log(0.5), -0.1 * np.log(0.75) - 0.9 * np.log(0.25)
  assert float(sums["loss"]) == pytest.approx(np.mean(losses)) and float(sums["accuracy"]) == 0


@pytest.mark.slow
def test_gpts_auxiliary_loss():
  head = ClassificationHead(("a", "b", "c"), lm_loss_weight=0.5)
  model, batch = attach_head(BACKBONES["gpt"], head), batch_for(head)
  variables = initialized(model, batch)
  outputs = model.apply(variables, batch)
  loss, metrics = model.loss(outputs, batch, LossSettings())
  plain, _ = attach_head(BACKBONES["gpt"], head.clone(lm_loss_weight=0.0)).loss(outputs, batch, LossSettings())
  logits = np.asarray(outputs["logits"], np.float64)
  log_probabilities = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
  tokens = batch["encoder_input_tokens"]
  losses = [-log_probabilities[r, i, tokens[r, i + 1]] for r, n in enumerate(LENGTHS) for i in range(n - 1)]
  np.testing.assert_allclose(metrics["lm_loss"], np.mean(losses), rtol=1e-5)
  np.testing.assert_allclose(loss, plain + 0.5 * np.mean(losses), rtol=1e-5)


def test_losses_of_microbatches_add_up_and_filler_rows_do_not_count():
  head = TaggingHead(("O", "B"))
  model, batch = attach_head(BACKBONES["bert"], head), batch_for(head)
  batch["encoder_loss_weights"][0, 3:] = 0.0
  variables, apply, loss = {"params": random_parameters(model, batch)}, jax.jit(model.apply), loss_of(model)
  outputs = apply(variables, batch)
  total = loss(outputs, batch)
  divide_by = model.divisors(batch, LossSettings())
  parts = [
    loss({k: x[r : r + 2] for k, x in outputs.items()}, {k: x[r : r + 2] for k, x in batch.items()}, divide_by)
    for r in (0, 2)
  ]
  np.testing.assert_allclose(sum(parts), total, rtol=1e-6)
  filled = {name: np.concatenate([x, np.zeros_like(x[:2])]) for name, x in batch.items()}
  np.testing.assert_allclose(loss(apply(variables, filled), filled), total, rtol=1e-5)


@pytest.mark.parametrize("kind", [ClassificationHead, MultiLabelHead])
def test_withheld_labels_do_not_count_in_an_evaluation(kind):
  head = kind(("a", "b", "c"))
  model, batch = attach_head(BACKBONES["bert"], head), batch_for(head)
  batch["labels"] = np.where([[False], [True], [True], [False]], -1, batch["labels"].reshape(4, -1)).astype(np.int32)
  batch["labels"] = batch["labels"].reshape(4, *[3] * (kind is MultiLabelHead))
  outputs = jax.jit(model.apply)({"params": random_parameters(model, batch)}, batch)
  sums = jax.jit(model.evaluation_sums)(outputs, batch)
  assert sums["target_tokens"] == 2 and np.isfinite(sums["loss"])


def test_defaults_are_those_of_the_family():
  chosen = {name: attach_head(model, ClassificationHead(("a", "b"))).head for name, model in BACKBONES.items()}
  assert (chosen["bert"].pooling, chosen["bert"].hidden, chosen["bert"].use_bias) == ("pooler", None, True)
  assert (chosen["t5"].pooling, chosen["t5"].hidden, chosen["t5"].use_bias) == ("last", "tanh", True)
  assert (chosen["gpt"].pooling, chosen["gpt"].hidden, chosen["gpt"].use_bias) == ("last", None, False)
  config = attach_head(BACKBONES["bert"], TaggingHead(("O", "B"))).config
  assert not config.pooler and not config.mlm_head and not config.nsp_head


@pytest.mark.parametrize(
  ("head", "message"),
  [
    (ClassificationHead(("a",)), "labels"),
    (ClassificationHead(("a", "b"), pooling="first"), "invalid ClassificationHead.pooling"),
    (ClassificationHead(("a", "b"), pooling="pooler", mix_layers=True), "mix_layers"),
    (ClassificationHead(("a", "b"), hidden="tan"), "hidden"),
    (ClassificationHead(("a", "b"), lm_loss_weight=0.5), "needs a causal language model, not BERT"),
    (MultipleChoiceHead(1), "choices"),
    (TaggingHead(("O", "O")), "labels"),
  ],
)
def test_invalid_heads_are_refused(head, message):
  with pytest.raises(UserError, match=message):
    attach_head(BACKBONES["bert"], head)


def test_a_pooler_needs_bert():
  with pytest.raises(UserError, match="GPT has no pooler"):
    attach_head(BACKBONES["gpt"], RegressionHead(pooling="pooler"))
  with pytest.raises(UserError, match="stack"):
    WithHead(BACKBONES["gpt"], RegressionHead(pooling="last"), stack="encoder").check()
