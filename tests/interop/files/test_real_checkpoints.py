"""Trained checkpoints of other projects give the same outputs as their original code."""

from pathlib import Path

import jax
import numpy as np
import pytest

from t5like.interop import huggingface, t5x

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
# Weights that may not be distributed are next to the checkout, if available.
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "checkpoints"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs the checkpoints of {SHARED}, too large to ship")
TOLERANCE = dict(rtol=0, atol=1e-4)


def apply(imported, batch, **options):
  return jax.jit(lambda p: imported.model.apply({"params": p}, batch, **options))(imported.params)


def test_gpt_nano_sort():
  """A trained minGPT, read from shards; activations of every block equal those of the original code."""
  imported = huggingface.load(GOLDEN / "gpt_nano_sort", scan_layers=True)
  assert not imported.model.config.tie_embeddings and imported.report.unexpected == []
  golden = np.load(GOLDEN / "gpt_nano_sort" / "outputs.npz")
  batch = {"decoder_input_tokens": golden["idx"].astype(np.int32)}

  def capture(module, _):
    return type(module).__name__ in ("ScanBlock", "Block", "Embedder", "Stack")

  outputs, captured = apply(imported, batch, capture_intermediates=capture, mutable="intermediates")
  captured = captured["intermediates"]
  np.testing.assert_allclose(captured["token_embedder"]["__call__"][0], golden["x"], **TOLERANCE)
  blocks = captured["decoder"]["layers"]["__call__"][0][0]
  for i in range(3):
    np.testing.assert_allclose(blocks[i], golden[f"block{i}"], **TOLERANCE)
  np.testing.assert_allclose(captured["decoder"]["__call__"][0][0], golden["ln_f"], **TOLERANCE)
  np.testing.assert_allclose(outputs["logits"], golden["lm_head"], **TOLERANCE)


def test_gpt_nano_sorts():
  """Greedy decoding sorts six letters, as the model was trained to."""
  imported = huggingface.load(GOLDEN / "gpt_nano_sort")
  letters = np.array([[2, 1, 0, 1, 2, 0], [1, 1, 0, 2, 0, 0], [2, 2, 2, 1, 1, 1]], np.int32)

  def sort(params):
    variables, batch = {"params": params}, {"decoder_input_tokens": letters}
    cache = imported.model.apply(variables, batch, 6, method="start_decoding")

    def step(state, _):
      tokens, cache = state
      logits, cache = imported.model.apply(variables, tokens, cache, method="decode_step")
      tokens = logits.argmax(-1).astype(np.int32)
      return (tokens, cache), tokens

    _, written = jax.lax.scan(step, (imported.model.first_tokens(batch), cache), length=6)
    return written.T

  np.testing.assert_array_equal(jax.jit(sort)(imported.params), np.sort(letters, axis=1))


@needs_shared
def test_bert_tiny_of_bleurt():
  """Google's bert_config.json, whose "gelu" is the tanh form."""
  imported = huggingface.load(SHARED / "bert_tiny_bleurt")
  assert sorted(imported.report.unexpected) == ["classifier.bias", "classifier.weight"]
  assert imported.model.config.activation == "gelu" and not imported.model.config.mlm_head
  golden = np.load(SHARED / "bert_tiny_bleurt" / "golden_hf.npz")
  batch = {
    "encoder_input_tokens": golden["input_ids"].astype(np.int32),
    "encoder_segment_ids": golden["attention_mask"].astype(np.int32),
    "encoder_token_types": golden["token_type_ids"].astype(np.int32),
  }

  def capture(module, _):
    return type(module).__name__ in ("Block", "Embedder")

  outputs, captured = apply(imported, batch, capture_intermediates=capture, mutable="intermediates")
  captured = captured["intermediates"]
  ours = [captured["token_embedder"]["__call__"][0]]
  ours += [captured["encoder"][f"layers_{i}"]["__call__"][0][0] for i in range(2)]
  real = golden["attention_mask"] > 0
  for mine, theirs in zip(ours, golden["hidden_tanh"], strict=True):
    np.testing.assert_allclose(np.asarray(mine)[real], theirs[real], **TOLERANCE)
  np.testing.assert_allclose(outputs["pooled"], golden["pooled_tanh"], **TOLERANCE)


@pytest.mark.sampled(1)
@needs_shared
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("name", ["t5x_tiny_msgpack", "t5x_tiny_zarr"])
def test_t5x_checkpoints(name, scan_layers):
  imported = t5x.load(SHARED / name, scan_layers=scan_layers)
  assert imported.report.unexpected == []
  golden = np.load(GOLDEN / f"{name}.npz")
  batch = {key: golden[key] for key in ("encoder_input_tokens", "decoder_input_tokens")}
  np.testing.assert_allclose(apply(imported, batch, method="encode"), golden["encoded"], **TOLERANCE)
  np.testing.assert_allclose(apply(imported, batch, method="hidden_states"), golden["hidden"], **TOLERANCE)
  np.testing.assert_allclose(apply(imported, batch)["logits"][:, :, ::640], golden["logits"], **TOLERANCE)
