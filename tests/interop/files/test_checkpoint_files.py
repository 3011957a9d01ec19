"""Checkpoints in the wild: sharded, prefixed, half precision, tied or not; and damaged ones, which are rejected."""

import json
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5like.errors import UserError
from t5like.interop import huggingface

GOLDEN = Path(__file__).parents[2] / "data" / "golden"


@pytest.fixture
def rewritten(tmp_path):
  """A golden checkpoint with its tensors or config changed."""

  def rewrite(case: str, tensors=lambda t: t, config=lambda c: c) -> Path:
    folder = tmp_path / case
    folder.mkdir()
    changed = tensors(load_file(GOLDEN / case / "model.safetensors"))
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    old = json.loads((GOLDEN / case / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config(old)))
    return folder

  return rewrite


def assert_same(folder: Path, case: str) -> None:
  ours, expected = huggingface.load(folder), huggingface.load(GOLDEN / case)
  assert ours.model == expected.model and ours.report.unexpected == []
  jax.tree.map(np.testing.assert_array_equal, ours.params, expected.params)


def test_sharded_equals_single_file(tmp_path):
  tensors = load_file(GOLDEN / "gpt2" / "model.safetensors")
  shutil.copy(GOLDEN / "gpt2" / "config.json", tmp_path)
  names = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
  for file in set(names.values()):
    save_file({name: tensors[name] for name in names if names[name] == file}, tmp_path / file)
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
  assert_same(tmp_path, "gpt2")
  (tmp_path / "model-00002-of-00002.safetensors").unlink()
  with pytest.raises(UserError, match="refers to missing shards"):
    huggingface.load(tmp_path)


def test_without_prefix_and_with_old_buffers(rewritten):
  """Like OpenAI's GPT-2 on the hub: no `transformer.` prefix, causal masks among the weights, a tied output copy."""

  def bare(t):
    return {name.removeprefix("transformer."): x for name, x in t.items()} | {
      "h.0.attn.bias": np.ones((1, 1, 20, 20), np.float32), "h.1.attn.masked_bias": np.array(-1e4, np.float32),
      "lm_head.weight": t["transformer.wte.weight"],
    }  # fmt: skip

  folder = rewritten("gpt2", bare)
  assert_same(folder, "gpt2")
  assert huggingface.load(folder).report.copies == ["lm_head.weight"]


def test_bert_with_tensorflow_names_and_tied_copies(rewritten):
  def old(tensors):
    def rename(n):
      return n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    named = {rename(name): x for name, x in tensors.items()}
    return named | {
      "cls.predictions.decoder.weight": named["bert.embeddings.word_embeddings.weight"],
      "cls.predictions.decoder.bias": named["cls.predictions.bias"],
      "bert.embeddings.position_ids": np.arange(20)[None],
    }

  assert_same(rewritten("bert", old), "bert")


def test_bert_heads_are_those_of_the_checkpoint(rewritten, tmp_path):
  def encoder(t):
    return {n.removeprefix("bert."): x for n, x in t.items() if n.startswith("bert.") and "pooler" not in n}

  imported = huggingface.load(rewritten("bert", encoder))
  config = imported.model.config
  assert (config.pooler, config.mlm_head, config.nsp_head) == (False, False, False)
  huggingface.save(tmp_path / "out", imported.model, imported.params)
  assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertModel"]
  assert sorted(load_file(tmp_path / "out" / "model.safetensors")) == sorted(
    load_file(tmp_path / "bert" / "model.safetensors")
  )


@pytest.mark.parametrize("name", ["encoder.embed_tokens.weight", "lm_head.weight"])
def test_a_tied_embedding_may_be_stored_under_any_of_its_names(rewritten, name):
  def moved(t):
    return {(name if n == "shared.weight" else n): x for n, x in t.items()}

  assert_same(rewritten("t5_1_0", moved), "t5_1_0")


def test_t5_1_1_with_older_configs(rewritten):
  """Published T5 1.1 configs have tie_word_embeddings = false and no scale_decoder_outputs."""

  def drop(c):
    return {k: v for k, v in c.items() if k != "scale_decoder_outputs"} | {"tie_word_embeddings": False}

  assert_same(rewritten("t5_1_1", config=drop), "t5_1_1")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_round_trips_bit_for_bit(rewritten, tmp_path, dtype):
  """Mixed too: transformers keeps T5's `wo` kernels in float32."""

  def cast(t):
    return {n: x if ".wo." in n else x.astype(dtype) for n, x in t.items()}

  imported = huggingface.load(rewritten("t5_1_1", cast), scan_layers=True)
  assert imported.model.config.param_dtype == np.dtype(dtype).name
  huggingface.save(tmp_path / "out", imported.model, imported.params)
  before, after = load_file(tmp_path / "t5_1_1/model.safetensors"), load_file(tmp_path / "out/model.safetensors")
  assert {n: (x.dtype, x.tobytes()) for n, x in before.items()} == {n: (x.dtype, x.tobytes()) for n, x in after.items()}
  outputs = imported.model.apply(
    {"params": imported.params},
    {k: np.ones((1, 3), np.int32) for k in ("encoder_input_tokens", "decoder_input_tokens")},
  )
  assert np.all(np.isfinite(outputs["logits"]))


def test_a_truncated_file_is_rejected(rewritten):
  folder = rewritten("gpt2")
  content = (folder / "model.safetensors").read_bytes()
  for size in (len(content) - 10, 100, 3, 0):
    (folder / "model.safetensors").write_bytes(content[:size])
    with pytest.raises(UserError, match="is a truncated or damaged safetensors file") as error:
      huggingface.load(folder)
    assert "copy it again" in str(error.value)


def test_a_size_mismatch_names_the_field(rewritten):
  with pytest.raises(UserError) as error:
    huggingface.load(rewritten("t5_1_0", config=lambda c: c | {"d_ff": 48}))
  assert "(16, 24)" in str(error.value) and "(16, 48)" in str(error.value) and "MLP_DIM" in str(error.value)


def test_a_vocabulary_mismatch_names_the_field(rewritten):
  with pytest.raises(UserError) as error:
    huggingface.load(rewritten("bert", config=lambda c: c | {"vocab_size": 30522}))
  assert "(60, 24)" in str(error.value) and "(30522, 24)" in str(error.value) and "VOCAB_SIZE" in str(error.value)


def test_an_invalid_number_of_heads_is_reported(rewritten):
  with pytest.raises(UserError, match="num_heads: 5"):
    huggingface.load(rewritten("gpt2", config=lambda c: c | {"n_head": 5}))


def test_missing_tensors_are_listed(rewritten):
  def lacking(t):
    return {n: x for n, x in t.items() if "block.1" not in n}

  with pytest.raises(UserError) as error:
    huggingface.load(rewritten("t5_1_1", lacking))
  assert "encoder.block.1.layer.0.SelfAttention.q.weight" in str(error.value)


def test_unexpected_tensors_are_reported(rewritten):
  def extra(t):
    return t | {"adapter.weight": np.zeros(3, np.float32)}

  report = huggingface.load(rewritten("gpt1", extra)).report
  assert report.unexpected == ["adapter.weight"]
  assert "1 unexpected" in report.summary() and "adapter.weight" in report.summary()
  assert "transformer.h.0.attn.c_attn.weight" in report.full()


@pytest.mark.parametrize(
  "change, words",
  [
    (dict(model_type="gpt_neo"), ["gpt_neo", "gpt2"]),
    (dict(activation_function="mish"), ["mish", "gelu_new"]),
    (dict(scale_attn_by_inverse_layer_idx=True), ["scale_attn_by_inverse_layer_idx"]),
    (dict(n_embd=None), ["config.json"]),
  ],
)
def test_unsupported_configs(rewritten, change, words):
  def changed(config):
    return {k: v for k, v in (config | change).items() if v is not None}

  with pytest.raises(UserError) as error:
    huggingface.load(rewritten("gpt2", config=changed))
  assert all(word in str(error.value) for word in words), str(error.value)


def test_folders_without_a_checkpoint(tmp_path):
  with pytest.raises(UserError, match="no config.json"):
    huggingface.load(tmp_path)
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(UserError, match="is invalid"):
    huggingface.load(tmp_path)
  (tmp_path / "config.json").write_text('{"model_type": "t5"}')
  (tmp_path / "tf_model.h5").write_bytes(b"")
  with pytest.raises(UserError, match="save_pretrained"):
    huggingface.load(tmp_path)


def test_a_model_that_hugging_face_cannot_run_is_not_exported(tmp_path):
  import dataclasses

  imported = huggingface.load(GOLDEN / "gpt2")
  config = dataclasses.replace(imported.model.config, positions="rotary", max_positions=None)
  with pytest.raises(UserError, match="does not support positions = 'rotary'"):
    huggingface.save(tmp_path, imported.model.clone(config=config), imported.params)


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("num_layers", 1_000_000_000, "at most 4,096 layers"),
    ("num_layers", 4_000, "4,002 layers, but the checkpoint only"),
    ("num_layers", True, "a whole number"),
    ("vocab_size", 10**12, "32 bits"),
    ("d_model", "8", "a whole number"),
    ("d_model", 10**30, "32 bits"),
    ("num_heads", 2.5, "a whole number"),
    ("d_ff", None, "a whole number"),
    ("dropout_rate", "a", "a number"),
    ("layer_norm_epsilon", float("nan"), "a number"),
    ("layer_norm_epsilon", 10**400, "a number"),
    ("feed_forward_proj", 7, "of the wrong type"),
    ("model_type", ["t5"], "unsupported model_type"),
    ("relative_attention_num_buckets", 10**9, "relative_max_distance"),
  ],
)
def test_an_inconsistent_config_is_rejected_before_anything_is_allocated(tmp_path, field, value, message):
  shutil.copytree(GOLDEN / "t5_1_1", tmp_path, dirs_exist_ok=True)
  config = json.loads((tmp_path / "config.json").read_text())
  (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
  with pytest.raises(UserError) as error:
    huggingface.load(tmp_path)
  assert "config.json" in str(error.value) and message in str(error.value)


@pytest.mark.parametrize("architectures", [float("nan"), 3, True, "T5EncoderModel", None])
def test_architectures_that_are_not_a_list_are_as_if_they_were_not_given(rewritten, architectures):
  assert_same(rewritten("t5_1_1", config=lambda c: c | {"architectures": architectures}), "t5_1_1")


def test_whole_numbers_in_the_place_of_others(rewritten):
  """XLA would compute with an integer of 32 bits."""
  imported = huggingface.load(rewritten("t5_1_1", config=lambda c: c | {"layer_norm_epsilon": 10**12}))
  assert imported.model.config.norm_epsilon == 1e12 and type(imported.model.config.norm_epsilon) is float
  tokens = {name: np.ones((1, 2), np.int32) for name in ("encoder_input_tokens", "decoder_input_tokens")}
  assert np.isfinite(imported.model.apply({"params": imported.params}, tokens)["logits"]).all()


@pytest.mark.parametrize(
  ("case", "name"),
  [
    ("t5_1_1", "encoder.final_layer_norm.weight"),
    ("gpt2", "transformer.ln_f.weight"),
    ("bert", "bert.pooler.dense.bias"),
  ],
)
def test_a_tensor_that_is_a_single_number_is_refused(rewritten, case, name):
  with pytest.raises(UserError, match=f"{name.partition('.')[2]} in .*{case} is a single number"):
    huggingface.load(rewritten(case, lambda t: t | {name: np.ones((), np.float32)}))


@pytest.mark.parametrize("content", ["[1]", "[" * 100_000, "x", "null", "3", '{"a": '])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "generation_config.json"])
def test_files_that_are_not_json_objects(tmp_path, name, content):
  shutil.copytree(GOLDEN / "t5_1_1", tmp_path, dirs_exist_ok=True)
  (tmp_path / name).write_text(content)
  with pytest.raises(UserError, match="is invalid") as error:
    huggingface.load(tmp_path)
  assert name in str(error.value)


@pytest.mark.parametrize("shard", ["../elsewhere.safetensors", "/etc/passwd", "a/b.safetensors", "", "..", 7, None])
def test_an_index_may_only_refer_to_files_of_its_folder(tmp_path, shard):
  shutil.copytree(GOLDEN / "t5_1_1", tmp_path, dirs_exist_ok=True)
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"shared.weight": shard}}))
  with pytest.raises(UserError, match="outside of its folder"):
    huggingface.load(tmp_path)
