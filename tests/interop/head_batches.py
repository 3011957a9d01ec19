"""Batches of Hugging Face's inputs for models with heads, and the comparison of their results with ours."""

from pathlib import Path

import jax
import numpy as np
import optax
from safetensors.numpy import load_file

from t5like.interop import huggingface
from t5like.models.heads import WithHead
from t5like.training.losses import LossSettings, loss_and_metrics

SETTINGS = LossSettings(z_loss=0.0)


def head_batch(model, inputs: dict) -> dict[str, np.ndarray]:
  inputs = {
    name: np.asarray(x, np.float32 if np.asarray(x).dtype.kind == "f" else np.int32) for name, x in inputs.items()
  }
  batch = {"encoder_input_tokens": inputs["input_ids"], "encoder_segment_ids": inputs["attention_mask"]}
  if "token_type_ids" in inputs:
    batch["encoder_token_types"] = inputs["token_type_ids"]
  if "start_positions" in inputs:
    batch["labels"] = np.stack([inputs["start_positions"], inputs["end_positions"]], axis=1)
  elif (
    inputs["labels"].ndim == 2
    and not model.config.discriminator_head
    and getattr(getattr(model, "head", None), "form", "tagging") == "tagging"
  ):
    batch["encoder_target_tokens"] = np.maximum(inputs["labels"], 0)
    batch["encoder_loss_weights"] = (inputs["labels"] >= 0).astype(np.float32)
  else:
    batch["labels"] = inputs["labels"]
  if "sentence_order_label" in inputs:
    batch["labels"] = inputs["sentence_order_label"]
  if isinstance(model, WithHead) and model.head.form == "choices":
    assert batch["encoder_input_tokens"].ndim == 3
  return batch


def results(model, params, batch):
  """Returns logits, loss and gradients."""
  from t5like.kernels.cross_entropy import cross_entropy

  def loss(params):
    outputs = model.apply({"params": params}, batch)
    if "replaced_logits" in outputs:  # ELECTRA's discriminator
      logits, real = outputs["replaced_logits"], batch["encoder_segment_ids"].astype(np.float32)
      losses = optax.sigmoid_binary_cross_entropy(logits, batch["labels"].astype(np.float32))
      return (losses * real).sum() / real.sum(), logits
    if {"encoder_target_tokens", "decoder_target_tokens"} & set(batch) and not isinstance(model, WithHead):
      return loss_and_metrics(outputs, batch, SETTINGS)[0], outputs["logits"]
    if not isinstance(model, WithHead):  # next sentence prediction is a part of BERT
      logits = outputs["nsp_logits"]
      return cross_entropy(logits, batch["labels"], 0.0, 0.0)[0].mean(), logits
    logits = outputs["span_logits" if model.head.form == "spans" else "label_logits"]
    return model.loss(outputs, batch, SETTINGS)[0], logits

  (value, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  return np.asarray(logits), float(value), jax.device_get(gradients)


def compare(imported, batch, logits, loss, gradients, folder: Path) -> None:
  """Asserts that all results agree within 1e-4; gradients are compared by the names of the file."""
  model = imported.model
  ours, value, grads = results(model, imported.params, batch)
  real = batch.get("encoder_segment_ids", np.zeros((0, 0))) > 0
  if logits.shape[:2] == real.shape:  # padding has no label; GPT's states at padding depend on the library
    ours, logits = ours[real], logits[real]
  np.testing.assert_allclose(ours, logits, rtol=0, atol=1e-4)
  np.testing.assert_allclose(value, loss, rtol=1e-4)
  huggingface.save(folder / "gradients", model, grads, imported.model_type)
  found = load_file(folder / "gradients" / "model.safetensors")
  assert sorted(found) == sorted(gradients)
  if isinstance(model, WithHead) and model.head.form == "spans":
    # Padding counts in the softmax over positions, but torch does not train its rows (padding_idx).
    padded = ("word_embeddings.weight", *["position_embeddings.weight"] * (model.config.position_offset > 0))
    padded += ("shared.weight",) * model.config.positions_per_stack
    for name in (name for name in found if name.endswith(padded)):
      assert not np.any(gradients[name][model.config.padding_id])
      found[name][model.config.padding_id] = 0
  scale = np.sqrt(sum(np.sum(np.square(x)) for x in gradients.values()))
  for name, expected in gradients.items():
    # Some are zero but for rounding: of key biases, and of a shift of all positions that a softmax compares.
    error = np.linalg.norm(found[name] - expected)
    assert error <= 1e-4 * np.linalg.norm(expected) + 1e-6 * max(scale, 0.1), (name, error, np.linalg.norm(expected))
