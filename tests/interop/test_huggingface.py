"""Compares our models with Hugging Face's, by the golden files of make_goldens.py."""

from pathlib import Path

import jax
import numpy as np
import pytest
from round_trips import round_trip

from t5like.interop import huggingface

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
T5_FAMILY = ("t5_1_0", "t5_1_1", "mt5", "byt5")
GPT_FAMILY = ("gpt2", "gpt1")
TOLERANCE = dict(rtol=0, atol=1e-4)


def batch_of(case: str, golden) -> dict[str, np.ndarray]:
  ids, real = golden["input_ids"].astype(np.int32), golden["attention_mask"].astype(np.int32)
  if case in T5_FAMILY:
    labels = golden["labels"].astype(np.int32)
    shifted = np.concatenate([np.zeros_like(labels[:, :1]), labels[:, :-1]], axis=1)
    return {"encoder_input_tokens": ids, "decoder_input_tokens": shifted}
  if case == "bert":
    types = golden["token_type_ids"].astype(np.int32)
    return {"encoder_input_tokens": ids, "encoder_segment_ids": real, "encoder_token_types": types}
  return {"decoder_input_tokens": ids}


def run(imported, batch):
  """Returns outputs, and hidden states per stack as in Hugging Face: embeddings, then each layer."""
  wanted = {"Block", "Embedder", "Stack"}

  def capture(module, method):
    return type(module).__name__.removeprefix("Scan") in wanted and method == "__call__"

  apply = jax.jit(
    lambda params: imported.model.apply(
      {"params": params}, batch, capture_intermediates=capture, mutable="intermediates"
    )
  )
  outputs, captured = apply(imported.params)
  return outputs, captured["intermediates"]


def hidden_states(imported, captured, stack: str, layers: int, embedded: int) -> list[jax.Array]:
  """`embedded`: which call of the embedder fed this stack."""
  states = [captured["token_embedder"]["__call__"][embedded]]
  if imported.model.config.scan_layers:
    states += list(captured[stack]["layers"]["__call__"][0][0])
  else:
    states += [captured[stack][f"layers_{i}"]["__call__"][0][0] for i in range(layers)]
  states[-1] = captured[stack]["__call__"][0][0]  # in Hugging Face the last one includes the final norm
  return states


def assert_states(ours: list[jax.Array], theirs: np.ndarray, real: np.ndarray) -> None:
  assert len(ours) == len(theirs)
  for mine, other in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(np.asarray(mine)[real], other[real], **TOLERANCE)


def cross_entropy(logits, labels) -> float:
  """Returns the mean over labels other than -100, in float64."""
  logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
  kept = labels != -100
  scores = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
  return -np.mean(scores[kept, labels[kept]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("case", T5_FAMILY)
def test_t5_equals_hugging_face(case, scan_layers):
  golden = np.load(GOLDEN / case / "outputs.npz")
  imported = huggingface.load(GOLDEN / case, scan_layers=scan_layers)
  config = imported.model.config
  outputs, captured = run(imported, batch_of(case, golden))
  # Hugging Face masks only key padding, so states at padding agree too.
  everywhere = np.ones_like(golden["input_ids"], bool)
  encoder = hidden_states(imported, captured, "encoder", config.num_encoder_layers, embedded=0)
  assert_states(encoder, golden["encoder_hidden_states"], everywhere)
  decoder = hidden_states(imported, captured, "decoder", config.num_decoder_layers, embedded=1)
  assert_states(decoder, golden["decoder_hidden_states"], np.ones_like(golden["labels"], bool))
  np.testing.assert_allclose(outputs["logits"], golden["logits"], **TOLERANCE)
  labels = np.where(golden["label_mask"] > 0, golden["labels"], -100)
  np.testing.assert_allclose(cross_entropy(outputs["logits"], labels), golden["loss"], rtol=1e-5)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("case", GPT_FAMILY)
def test_gpt_equals_hugging_face(case, scan_layers):
  golden = np.load(GOLDEN / case / "outputs.npz")
  real = golden["attention_mask"] > 0
  imported = huggingface.load(GOLDEN / case, scan_layers=scan_layers)
  outputs, captured = run(imported, batch_of(case, golden))
  ours = hidden_states(imported, captured, "decoder", imported.model.config.num_decoder_layers, embedded=0)
  assert_states(ours, golden["hidden_states"], real)
  np.testing.assert_allclose(np.asarray(outputs["logits"])[real], golden["logits"][real], **TOLERANCE)
  loss = cross_entropy(outputs["logits"][:, :-1], golden["labels"][:, 1:])
  np.testing.assert_allclose(loss, golden["loss"], rtol=1e-5)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_bert_equals_hugging_face(scan_layers):
  golden = np.load(GOLDEN / "bert" / "outputs.npz")
  real = golden["attention_mask"] > 0
  imported = huggingface.load(GOLDEN / "bert", scan_layers=scan_layers)
  outputs, captured = run(imported, batch_of("bert", golden))
  assert_states(hidden_states(imported, captured, "encoder", 2, embedded=0), golden["hidden_states"], real)
  np.testing.assert_allclose(np.asarray(outputs["logits"])[real], golden["logits"][real], **TOLERANCE)
  np.testing.assert_allclose(outputs["pooled"], golden["pooled"], **TOLERANCE)
  np.testing.assert_allclose(outputs["nsp_logits"], golden["nsp_logits"], **TOLERANCE)
  loss = cross_entropy(outputs["logits"], golden["labels"])
  loss += cross_entropy(outputs["nsp_logits"], golden["next_sentence_label"])
  np.testing.assert_allclose(loss, golden["loss"], rtol=1e-5)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("case", (*T5_FAMILY, "bert", *GPT_FAMILY))
def test_round_trip_is_bit_exact(case, scan_layers, tmp_path):
  imported = round_trip(GOLDEN / case, tmp_path, scan_layers)
  again = huggingface.load(tmp_path, scan_layers=scan_layers)
  assert again.model == imported.model
  jax.tree.map(np.testing.assert_array_equal, again.params, imported.params)
