"""On one GPU the logits of a training step keep the columns that XLA pads a product with: losses are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.finetuning.methods.lora import LowRankTable
from t5like.models import GPT, T5, TransformerConfig, embedder
from t5like.models.tuning import Tuning
from t5like.training.losses import LossSettings, loss_and_metrics

SIZE = dict(vocab_size=35, embed_dim=16, mlp_dim=24, num_heads=2, head_dim=8, num_decoder_layers=1)
SETTINGS = LossSettings(z_loss=0.01, label_smoothing=0.1)


def build(family: str, tuning: Tuning | None = None, **fields):
  """Returns a model, its parameters and a batch."""
  make, sides = (GPT, ("decoder",)) if family == "GPT" else (T5, ("encoder", "decoder"))
  if family == "T5":
    fields |= dict(num_encoder_layers=1, logits_bias=True)
  model = make(TransformerConfig(**SIZE | fields), **({"tuning": tuning} if tuning else {}))
  rng = np.random.default_rng(0)
  batch = {f"{side}_input_tokens": rng.integers(2, 35, (3, 6)).astype(np.int32) for side in sides}
  batch |= {"decoder_target_tokens": rng.integers(2, 35, (3, 6)).astype(np.int32)}
  batch["decoder_loss_weights"] = rng.integers(2, size=(3, 6)).astype(np.float32)
  params = jax.tree.map(jnp.asarray, jax.jit(model.init)(jax.random.key(0), batch)["params"])
  leaves, treedef = jax.tree.flatten(params)
  return model, treedef.unflatten([x + 0.3 * rng.normal(size=x.shape).astype(np.float32) for x in leaves]), batch


def loss_and_gradients(model, params, batch):
  def loss(params):
    outputs = model.apply({"params": params}, batch, deterministic=False, rngs={"dropout": jax.random.key(1)})
    value, metrics = loss_and_metrics(outputs, batch, SETTINGS)
    return value, (metrics, outputs)

  (_, (metrics, outputs)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
  return outputs, (metrics, gradients)


@pytest.mark.parametrize("family, updated", [("GPT", False), ("GPT", True), ("T5", False)])
def test_losses_and_gradients_are_those_without_padding(family, updated, monkeypatch):
  """Also with the bias of BART's logits, and with a low-rank update of the table."""
  low_rank = LowRankTable(2, 1.0, inputs=35, outputs=16, axes=("vocab", "embed"))
  tuning = Tuning((("token_embedder", (low_rank,)),)) if updated else None
  model, params, batch = build(family, tuning)
  plain, expected = loss_and_gradients(model, params, batch)
  monkeypatch.setattr(embedder, "is_single_gpu", lambda: True)
  padded, got = loss_and_gradients(model, params, batch)
  assert set(plain) == {"logits"} and set(padded) == {"logits", "padded_logits"}
  assert padded["padded_logits"].shape == (3, 6, 40)
  np.testing.assert_allclose(padded["logits"], plain["logits"], rtol=1e-6, atol=1e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, expected)
  assert set(model.apply({"params": params}, batch)) == {"logits"}


@pytest.mark.parametrize(
  "fields", [dict(vocab_size=40), dict(tie_embeddings=False), dict(softmax_mixtures=2)], ids=lambda fields: [*fields][0]
)
def test_other_logits_have_none(fields, monkeypatch):
  monkeypatch.setattr(embedder, "is_single_gpu", lambda: True)
  outputs, _ = loss_and_gradients(*build("GPT", **fields))
  assert set(outputs) == {"logits"}
