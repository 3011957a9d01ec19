"""End-to-end tests of `t5like convert`: import, export and invalid input."""

import json
import shutil
from pathlib import Path

import jax
import ml_dtypes  # noqa: F401  (registers bfloat16 in numpy)
import numpy as np
import pytest
from flax import serialization
from golden_folders import hugging_face_t5
from safetensors.numpy import load_file

from t5like.interop import huggingface
from t5like.training.checkpoints import load_parameters, read_fingerprint
from t5like.vocabularies import load_vocabulary, vocabulary_path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
  return hugging_face_t5(tmp_path_factory.mktemp("hf"))


@pytest.mark.parametrize("flags", [[], ["--scan_layers"]])
def test_hugging_face_round_trip(t5like, checkpoint, tmp_path, flags):
  done = t5like("convert", "from_hf", checkpoint, tmp_path / "model", "--vocabulary=tiny", *flags)
  assert "tensors used, 0 tied copies, 0 missing, 0 unexpected" in done.stdout
  report = (tmp_path / "model" / "conversion.txt").read_text()
  assert "used        encoder.block.0.layer.0.SelfAttention.q.weight" in report
  expected = huggingface.load(checkpoint, scan_layers=bool(flags)).params
  jax.tree.map(np.testing.assert_array_equal, load_parameters(tmp_path / "model"), expected)

  t5like("convert", "to_hf", tmp_path / "model", tmp_path / "out")
  before, after = load_file(checkpoint / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
  assert {n: x.tobytes() for n, x in before.items()} == {n: x.tobytes() for n, x in after.items()}
  assert huggingface.load(tmp_path / "out").model == huggingface.load(checkpoint).model


def test_beams_with_another_length_penalty_are_refused_before_anything_is_written(t5like, checkpoint, tmp_path):
  t5like("convert", "from_hf", checkpoint, tmp_path / "model", "--vocabulary=tiny")
  with (tmp_path / "model/config.gin").open("a") as config:
    config.write("\nDECODING = {'beams': 4}\n")
  error = t5like("convert", "to_hf", tmp_path / "model", tmp_path / "out", status=2).stderr
  assert "'penalty_form': 'power'" in error and not any((tmp_path / "out").glob("*"))
  with (tmp_path / "model/config.gin").open("a") as config:
    config.write("\nDECODING = {'beams': 4, 'penalty_form': 'power'}\n")
  t5like("convert", "to_hf", tmp_path / "model", tmp_path / "out")
  assert json.loads((tmp_path / "out/generation_config.json").read_text())["num_beams"] == 4


def test_dtype_casts_on_import_and_export(t5like, checkpoint, tmp_path):
  t5like("convert", "from_hf", checkpoint, tmp_path / "model", "--vocabulary=tiny", "--dtype=bfloat16")
  assert load_parameters(tmp_path / "model")["encoder"]["final_norm"]["scale"].dtype == "bfloat16"
  t5like("convert", "to_hf", tmp_path / "model", tmp_path / "out", "--dtype=float32")
  before, after = load_file(checkpoint / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
  for name, tensor in before.items():
    np.testing.assert_array_equal(after[name], tensor.astype("bfloat16").astype(np.float32))


def test_a_converted_model_is_evaluated_like_a_run(t5like, checkpoint, token_caches, tmp_path):
  t5like("convert", "from_hf", checkpoint, tmp_path / "model", "--vocabulary=tiny")
  options = ["--task=snli", "--examples=4", "--batch_size=8", f"--cache_dir={token_caches}"]
  done = t5like("eval", f"--model_dir={tmp_path / 'model'}", *options)
  assert "snli (validation, 4 examples) at step 0" in done.stdout


def test_a_converted_model_is_fine_tuned_in_its_own_directory(t5like, checkpoint, token_caches, tmp_path):
  t5like("convert", "from_hf", checkpoint, tmp_path / "model", "--vocabulary=tiny")
  command = [
    "train", f"--gin_file={tmp_path / 'model' / 'config.gin'}", "--gin.TASK=snli", f"--gin.CACHE_DIR={token_caches}",
    "--gin.LENGTHS={'inputs': 16, 'targets': 4}", "--gin.BATCH_SIZE=8", "--gin.EVAL_EXAMPLES=8",
  ]  # fmt: skip
  assert "the converted parameters in this directory" in t5like(*command, "--gin.TRAIN_STEPS=2").stdout
  assert "its own checkpoint of step 2" in t5like(*command, "--gin.TRAIN_STEPS=3").stdout


def test_the_vocabulary_next_to_a_checkpoint_is_used(t5like, checkpoint, tmp_path):
  shutil.copytree(checkpoint, tmp_path / "hf")
  shutil.copy(vocabulary_path("tiny"), tmp_path / "hf" / "spiece.model")
  t5like("convert", "from_hf", tmp_path / "hf", tmp_path / "model")
  copy = tmp_path / "model" / "vocabulary" / "spiece.model"
  assert f"VOCABULARY = '{copy}'" in (tmp_path / "model" / "config.gin").read_text()
  assert copy.read_bytes() == vocabulary_path("tiny").read_bytes()
  assert read_fingerprint(tmp_path / "model/checkpoints/0")["vocabulary"] == load_vocabulary("tiny").fingerprint


def test_weights_are_converted_without_a_vocabulary_and_used_with_any_that_fits(
  t5like, checkpoint, token_caches, tmp_path
):
  done = t5like("convert", "from_hf", checkpoint, tmp_path / "model")
  assert "not found: only the weights" in done.stdout
  failed = t5like("eval", f"--model_dir={tmp_path / 'model'}", "--task=snli", status=2)
  assert "vocabulary not found: 'unknown'" in failed.stderr
  config = tmp_path / "model" / "config.gin"
  config.write_text(config.read_text() + "VOCABULARY = 'tiny'\n")
  options = ["--task=snli", "--examples=4", "--batch_size=8", f"--cache_dir={token_caches}"]
  t5like("eval", f"--model_dir={tmp_path / 'model'}", *options)


def test_t5x_import(t5like, tmp_path):
  width, rng = 4, np.random.default_rng(0)

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  def attention():
    return {name: {"kernel": normal(width, width)} for name in ("query", "key", "value", "out")}

  def mlp():
    return {"wi": {"kernel": normal(width, 8)}, "wo": {"kernel": normal(8, width)}}

  def scale():
    return {"scale": normal(width)}

  encoder = {"attention": attention(), "mlp": mlp(), "pre_attention_layer_norm": scale(), "pre_mlp_layer_norm": scale()}
  decoder = {
    "self_attention": attention(), "encoder_decoder_attention": attention(), "mlp": mlp(),
    "pre_mlp_layer_norm": scale(),
    "pre_self_attention_layer_norm": scale(), "pre_cross_attention_layer_norm": scale(),
  }  # fmt: skip

  def bias():
    return {"rel_embedding": normal(2, 32)}

  target = {
    "token_embedder": {"embedding": normal(4224, width)},
    "encoder": {"layers_0": encoder, "encoder_norm": scale(), "relpos_bias": bias()},
    "decoder": {"layers_0": decoder, "decoder_norm": scale(), "relpos_bias": bias()},
  }
  (tmp_path / "checkpoint_7").write_bytes(serialization.msgpack_serialize({"optimizer": {"target": target}}))
  t5like("convert", "from_t5x", tmp_path / "checkpoint_7", tmp_path / "model", "--vocabulary=tiny")
  params = load_parameters(tmp_path / "model")
  np.testing.assert_array_equal(
    params["decoder"]["layers_0"]["cross_attention"]["key"]["kernel"],
    decoder["encoder_decoder_attention"]["key"]["kernel"],
  )


def test_a_checkpoint_that_does_not_match_the_gin_file(t5like, checkpoint, tmp_path):
  size = ["--gin.EMBED_DIM=16", "--gin.MLP_DIM=24", "--gin.NUM_HEADS=3", "--gin.HEAD_DIM=6", "--gin.VOCAB_SIZE=4224",
          "--gin.NUM_ENCODER_LAYERS=2", "--gin.NUM_DECODER_LAYERS=2"]  # fmt: skip
  command = ["convert", "from_hf", checkpoint, tmp_path / "model", "--vocabulary=tiny"]
  failed = t5like(*command, "--gin_file=models/t5/tiny.gin", *size, status=2)
  assert "gated_mlp" in failed.stderr and "tie_embeddings" in failed.stderr and "embed_dim" not in failed.stderr
  assert not (tmp_path / "model").exists()
  t5like(*command, "--gin_file=models/t5_1_1/small.gin", *size, "--gin.VOCABULARY=tiny")


@pytest.mark.parametrize(
  "arguments, words",
  [
    (["from_hf", "{hf}", "{new}", "--vocabulary=t5"], ["32", "ids", "4224 rows"]),
    (["from_hf", "{hf}", "{hf}", "--vocabulary=tiny"], ["is not empty"]),
    (["from_hf", "{new}", "{new}2"], ["no config.json"]),
    (["to_hf", "{hf}", "{new}"], ["is not a model directory", "config.gin"]),
    (["to_hf", "{hf}", "{new}", "--scan_layers"], ["to_hf", "--dtype"]),
    (["from_flax", "{hf}", "{new}"], ["from_flax", "from_t5x"]),
  ],
)
def test_invalid_input(t5like, checkpoint, tmp_path, arguments, words):
  arguments = [a.format(hf=checkpoint, new=tmp_path / "new") for a in arguments]
  failed = t5like("convert", *arguments, status=2)
  assert all(word in failed.stderr for word in words), failed.stderr
