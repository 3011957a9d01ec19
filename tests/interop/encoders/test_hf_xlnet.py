"""XLNet against golden results of transformers: both streams, memory, heads; folders bit by bit."""

import json

import jax
import numpy as np
import pytest
from head_batches import SETTINGS, compare, head_batch
from round_trips import round_trip
from zoo_goldens import family, golden, parameters, take_results

from t5like.errors import UserError
from t5like.interop import huggingface
from t5like.interop.hf_fields import guess_model_type
from t5like.models import XLNet
from t5like.models.heads import EmbeddingHead, attach_head
from t5like.training.losses import loss_and_metrics

LANGUAGE_MODEL = "XLNetLMHeadModel"
HEADS = [("xlnet", case) for case in family("xlnet") if case != LANGUAGE_MODEL]
SCANNED = pytest.mark.parametrize("scan_layers", [True, pytest.param(False, marks=pytest.mark.slow)])


def as_batch(arrays: dict) -> dict[str, np.ndarray]:
  return {
    "encoder_input_tokens": arrays["input_ids"].astype(np.int32) * arrays["attention_mask"],  # ours are padded with 0
    "encoder_token_types": arrays["token_type_ids"].astype(np.int32) * arrays["attention_mask"],
    "encoder_lengths": arrays["attention_mask"].sum(axis=1, dtype=np.int32),
    "encoder_target_tokens": arrays["input_ids"].astype(np.int32),
    "encoder_loss_weights": arrays["weights"].astype(np.float32),
    "encoder_order": arrays["order"].astype(np.int32),
  }


@SCANNED
def test_the_language_model_equals_transformers(scan_layers, tmp_path):
  arrays = golden("xlnet", LANGUAGE_MODEL, tmp_path / "theirs")
  logits, loss, gradients = take_results(arrays)
  imported = huggingface.load(tmp_path / "theirs", scan_layers=scan_layers)
  model, batch, memory = imported.model, as_batch(arrays), np.swapaxes(arrays["mems"], 1, 2)
  close = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)  # noqa: E731

  def two_streams(model, batch, memory=None):
    return model.project(model.two_streams(batch, True, memory)[1])

  @jax.jit
  def results(params):
    apply = lambda *args, **how: model.apply({"params": params}, batch, *args, **how)  # noqa: E731
    after = apply(all_layers=True, memory=memory, method="hidden_states")
    return (
      apply(method=lambda model, batch: model.project(model.hidden_states(batch))),
      apply(all_layers=True, method="hidden_states"),
      apply(after[-1], method=lambda model, _, states: model.project(states)),
      after,
      apply(method=two_streams),
    )

  plain, states, after_memory, new, streams = results(imported.params)
  close(plain, arrays["plain"])
  close(states, arrays["states"])
  close(after_memory, arrays["after_memory"])
  # transformers returns the old memory and the inputs of all layers.
  close(np.concatenate([memory, new[:-1]], axis=2), np.swapaxes(arrays["new_memory"], 1, 2))
  predicted = arrays["weights"]
  close(np.asarray(streams)[predicted], arrays["streams"][predicted])

  @jax.jit
  @jax.value_and_grad
  def mean_loss(params):
    outputs = {"logits": model.apply({"params": params}, batch, memory, method=two_streams)}
    return loss_and_metrics(outputs, batch, SETTINGS)[0]

  value, found = mean_loss(imported.params)
  np.testing.assert_allclose(value, loss, rtol=1e-4)
  huggingface.save(tmp_path / "gradients", model, jax.device_get(found))
  from safetensors.numpy import load_file

  ours = load_file(tmp_path / "gradients" / "model.safetensors")
  for name, expected in gradients.items():
    error = np.linalg.norm(ours[name] - expected)
    assert error <= 1e-4 * np.linalg.norm(expected) + 1e-6, name
  assert np.linalg.norm(gradients["transformer.mask_emb"]) > 0.01


@SCANNED
def test_training_uses_the_start_of_a_row_as_memory(scan_layers, tmp_path):
  """Logits of predicted positions, with the memory computed in the step, equal those with it as an argument."""
  arrays = golden("xlnet", LANGUAGE_MODEL, tmp_path)
  imported = huggingface.load(tmp_path, scan_layers=scan_layers, dropout_rate=0.0)
  batch = as_batch(arrays)
  del batch["encoder_lengths"]
  batch["encoder_segment_ids"] = arrays["attention_mask"].astype(np.int32)
  first = 2
  batch["encoder_loss_weights"][:, :first] = 0.0
  model = imported.model.clone(memory_length=first, predicted_share=0.4)  # at most 8 of 9 positions
  part = lambda tokens: {name: x[:, tokens] for name, x in batch.items()}  # noqa: E731

  def parts(model):
    states = model.hidden_states(part(slice(0, first)), all_layers=True)
    return model.project(model.two_streams(part(slice(first, None)), True, states[:-1])[1])

  run = jax.jit(lambda params: model.apply({"params": params}, batch, deterministic=False))
  outputs, expected = run(imported.params), jax.jit(lambda p: model.apply({"params": p}, method=parts))(imported.params)
  at = np.asarray(outputs["predicted"])
  assert at.shape == (3, 8) and at.min() >= first
  chosen = np.take_along_axis(batch["encoder_loss_weights"], at, axis=1) > 0
  assert chosen.sum() == batch["encoder_loss_weights"].sum() > 4
  wanted = np.take_along_axis(np.asarray(expected), at[:, :, None] - first, axis=1)
  np.testing.assert_allclose(np.asarray(outputs["logits"])[chosen], wanted[chosen], atol=1e-5)
  with pytest.raises(UserError, match="no more than the memory"):
    model.clone(memory_length=11).apply({"params": imported.params}, batch)


@pytest.mark.parametrize("name, case", parameters(HEADS, "XLNetForSequenceClassification"))
@SCANNED
def test_heads_equal_transformers(name, case, scan_layers, tmp_path):
  """Rows that are read from their last token are padded on the left there, and on the right here."""
  arrays = golden(name, case, tmp_path / "theirs")
  logits, loss, gradients = take_results(arrays)
  mask = arrays["attention_mask"]
  if not mask[..., 0].all():
    lengths = mask.sum(axis=-1)
    turn = lambda x: np.stack([np.roll(r, n) for r, n in zip(x.reshape(-1, x.shape[-1]), lengths.ravel())])  # noqa: B905, E731
    arrays |= {n: turn(arrays[n]).reshape(mask.shape) for n in ("input_ids", "attention_mask", "token_type_ids")}
    assert arrays["attention_mask"][..., 0].all()
  imported = huggingface.load(tmp_path / "theirs", scan_layers=scan_layers)
  batch = head_batch(imported.model, arrays)
  for feature in ("encoder_input_tokens", "encoder_token_types"):
    batch[feature] = batch[feature] * batch["encoder_segment_ids"]
  compare(imported, batch, logits, float(loss), gradients, tmp_path)


@pytest.mark.parametrize("case", family("xlnet"))
def test_round_trip_is_bit_exact(case, tmp_path):
  golden("xlnet", case, tmp_path / "theirs")
  imported = round_trip(tmp_path / "theirs", tmp_path / "ours", scan_layers=len(case) % 2 == 0)
  assert isinstance(getattr(imported.model, "backbone", imported.model), XLNet)
  old, new = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("theirs", "ours"))
  assert old["architectures"] == new["architectures"] == [case]
  assert not {k: (v, old[k]) for k, v in new.items() if k in old and v != old[k]}
  old.pop("model_type")
  assert guess_model_type(old) == "xlnet"
  assert guess_model_type({k: v for k, v in old.items() if k != "architectures"}) == "xlnet"


def test_sentence_embeddings_go_out_and_in(tmp_path):
  golden("xlnet", LANGUAGE_MODEL, tmp_path / "theirs")
  imported = huggingface.load(tmp_path / "theirs")
  model = attach_head(imported.model, EmbeddingHead("ranking", texts=2, pooling="mean", length=9))
  params = {"backbone": {name: part for name, part in imported.params.items() if name != "mlm_head"}}
  huggingface.save(tmp_path / "ours", model, params)
  again = huggingface.load(tmp_path / "ours")
  assert again.model.backbone == model.backbone
  jax.tree.map(np.testing.assert_array_equal, again.params, params)


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"attn_type": "uni"}, "attn_type = 'uni' is not supported"),
    ({"clamp_len": 9}, "clamp_len = 9"),
    ({"summary_type": "first"}, "summary_type = 'first' is not supported"),
  ],
)
def test_what_is_not_supported_is_rejected(fields, words, tmp_path):
  golden("xlnet", "XLNetForSequenceClassification", tmp_path)
  path = tmp_path / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))
  with pytest.raises(UserError, match=words):
    huggingface.load(tmp_path)
