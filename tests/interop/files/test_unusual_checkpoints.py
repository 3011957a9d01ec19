"""Valid but rare checkpoints: read as in transformers, or rejected; never silently misread."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5like.errors import UserError
from t5like.interop import huggingface

GOLDEN = Path(__file__).parents[2] / "data" / "golden"


def rewrite(folder: Path, case: str, tensors=lambda t: t, **config) -> Path:
  """Writes a golden checkpoint with changed tensors and config fields (None: removed)."""
  save_file(tensors(load_file(GOLDEN / case / "model.safetensors")), folder / "model.safetensors")
  fields = json.loads((GOLDEN / case / "config.json").read_text()) | config
  (folder / "config.json").write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))
  return folder


def test_umt5_is_t5_with_relative_position_biases_in_every_layer(tmp_path):
  """With the same table in each layer it equals T5 1.1, whose golden logits are from transformers."""

  def in_every_layer(tensors):
    def at(stack, layer):
      return f"{stack}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"

    layers = {name.split(".")[0] + name.split(".")[2] for name in tensors if ".block." in name}
    return tensors | {at(x[:-1], x[-1]): tensors[at(x[:-1], 0)].copy() for x in layers}

  folder = rewrite(tmp_path, "t5_1_1", in_every_layer, model_type="umt5", scale_decoder_outputs=None,
                   tie_word_embeddings=False)  # fmt: skip
  imported = huggingface.load(folder)
  assert imported.report.unexpected == [] and not imported.model.config.share_relative_bias
  golden = np.load(GOLDEN / "t5_1_1" / "outputs.npz")
  labels = golden["labels"].astype(np.int32)
  shifted = np.concatenate([np.zeros_like(labels[:, :1]), labels[:, :-1]], axis=1)
  batch = {"encoder_input_tokens": golden["input_ids"].astype(np.int32), "decoder_input_tokens": shifted}
  logits = jax.jit(lambda p: imported.model.apply({"params": p}, batch)["logits"])(imported.params)
  np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
  "case, fields, activation",
  [
    (
      "t5_1_1",
      dict(feed_forward_proj="gated-relu", dense_act_fn="gelu_new"),
      "gelu",
    ),  # the parsed field takes precedence
    ("t5_1_1", dict(feed_forward_proj="gated-gelu", dense_act_fn="gelu"), "gelu_erf"),
    ("t5_1_1", dict(feed_forward_proj="gated-gelu_python", dense_act_fn=None), "gelu_erf"),
    ("mt5", dict(feed_forward_proj=None, dense_act_fn=None, is_gated_act=None), "gelu"),  # mT5's default is not T5's
    ("bert", dict(hidden_act="gelu_fast"), "gelu"),
  ],
)
def test_rare_names_of_activations(case, fields, activation, tmp_path):
  config = huggingface.load(rewrite(tmp_path, case, **fields)).model.config
  expected = huggingface.load(GOLDEN / case).model.config
  assert config == dataclasses.replace(expected, activation=activation)


@pytest.mark.parametrize(
  "case, fields, words",
  [
    ("gpt2", dict(tie_word_embeddings=False), "no lm_head.weight"),
    ("bert", dict(tie_word_embeddings=False), "no cls.predictions.decoder.weight"),
    ("bert", dict(is_decoder=True), "this model is a decoder"),
    ("bert", dict(position_embedding_type="relative_key"), "only encoders with absolute positions"),
  ],
)
def test_settings_that_would_change_outputs_are_rejected(case, fields, words, tmp_path):
  with pytest.raises(UserError, match=words):
    huggingface.load(rewrite(tmp_path, case, **fields))


def test_the_decoder_start_in_generation_config_takes_precedence(tmp_path):
  folder = rewrite(tmp_path, "t5_1_0")
  (folder / "generation_config.json").write_text('{"decoder_start_token_id": 3, "pad_token_id": 3}')
  assert huggingface.load(folder).model.config.start_id == 3


def test_padding_and_start_ids_of_a_t5(tmp_path):
  """A T5 whose padding is not 0 starts with its padding unless config.json says otherwise; both are kept."""
  changed = rewrite(tmp_path, "t5_1_0", pad_token_id=1, decoder_start_token_id=None)
  imported = huggingface.load(changed)
  assert (imported.model.config.padding_id, imported.model.config.start_id) == (1, 1)
  huggingface.save(tmp_path / "out", imported.model, imported.params)
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  assert (config["pad_token_id"], config["decoder_start_token_id"]) == (1, 1)


@pytest.mark.parametrize("dtype", ["int8", "float64"])
def test_quantized_weights_are_rejected(dtype, tmp_path):
  def quantized(tensors):
    return {n: (x * 100).astype(dtype) if n.endswith("SelfAttention.q.weight") else x for n, x in tensors.items()}

  with pytest.raises(UserError, match="SelfAttention.q.weight .* has dtype"):
    huggingface.load(rewrite(tmp_path, "t5_1_0", quantized))


def exported(case: str, folder: Path, model_type: str | None = None, **changes) -> dict:
  """Exports a golden model with changed config fields; returns its config.json."""
  imported = huggingface.load(GOLDEN / case)
  model = imported.model.clone(config=dataclasses.replace(imported.model.config, **changes))
  huggingface.save(folder, model, imported.params, model_type)
  return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_values_that_are_not_finite_are_rejected(dtype, value, tmp_path):
  def converted(tensors):
    return {name: tensor.astype(jax.numpy.dtype(dtype)) for name, tensor in tensors.items()}

  def damaged(tensors):
    tensors = converted(tensors)
    tensors["transformer.h.1.mlp.c_fc.weight"][3, 4] = value
    return tensors

  huggingface.load(rewrite(tmp_path, "gpt2", converted))
  with pytest.raises(UserError, match="h.1.mlp.c_fc.weight in .* contains values that are not finite") as error:
    huggingface.load(rewrite(tmp_path, "gpt2", damaged))
  assert str(tmp_path) in str(error.value)


def test_gated_exact_gelu_is_preserved(tmp_path):
  """In transformers "gated-gelu" is the tanh form, and "gelu_python" another name for the exact one."""
  assert exported("t5_1_1", tmp_path, activation="gelu_erf")["feed_forward_proj"] == "gated-gelu_python"
  assert huggingface.load(tmp_path).model.config.activation == "gelu_erf"


def test_a_scaled_model_is_not_exported_as_mt5(tmp_path):
  """MT5ForConditionalGeneration never multiplies by d_model**-0.5."""
  assert exported("t5_1_0", tmp_path / "scaled", "mt5")["model_type"] == "t5"
  assert exported("t5_1_0", tmp_path / "plain", "mt5", scale_logits=False)["model_type"] == "mt5"


def test_gpt_1_has_no_exact_gelu(tmp_path):
  with pytest.raises(UserError, match="gelu_erf"):
    exported("gpt1", tmp_path, activation="gelu_erf")


def test_parameters_without_counterpart_are_not_dropped(tmp_path):
  imported = huggingface.load(GOLDEN / "gpt2")
  embedder = imported.params["token_embedder"] | {"token_type_embedding": np.ones((2, 4), np.float32)}
  with pytest.raises(UserError, match="token_type_embedding"):
    huggingface.save(tmp_path, imported.model, imported.params | {"token_embedder": embedder})


def test_a_bert_without_token_types_gets_a_table_of_zeros(tmp_path):
  """transformers' BERT always adds a row of that table."""
  imported = huggingface.load(GOLDEN / "bert")
  embedder = {k: v for k, v in imported.params["token_embedder"].items() if k != "token_type_embedding"}
  model = imported.model.clone(config=dataclasses.replace(imported.model.config, num_token_types=0))
  huggingface.save(tmp_path, model, imported.params | {"token_embedder": embedder})
  table = load_file(tmp_path / "model.safetensors")["bert.embeddings.token_type_embeddings.weight"]
  assert table.shape == (1, imported.model.config.embed_dim) and not table.any()
  assert json.loads((tmp_path / "config.json").read_text())["type_vocab_size"] == 1
