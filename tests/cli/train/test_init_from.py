"""INIT_FROM with checkpoints of other libraries: T5X and Hugging Face, read directly."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from golden_folders import hugging_face_t5
from t5x_checkpoints import t5x_tree, write_msgpack, write_zarr
from trainers import finish, start_pod

from t5like.interop import huggingface
from t5like.training.checkpoints import load_parameters
from t5like.vocabularies import vocabulary_path

# The golden T5 1.1, with the rows of the embedded vocabulary `tiny`.
MODEL = [
  "--gin_file=models/t5_1_1/small.gin", "--gin.EMBED_DIM=16", "--gin.MLP_DIM=24", "--gin.NUM_HEADS=3",
  "--gin.HEAD_DIM=6", "--gin.VOCAB_SIZE=4224", "--gin.NUM_ENCODER_LAYERS=2", "--gin.NUM_DECODER_LAYERS=2",
  "--gin.VOCABULARY=tiny",
]  # fmt: skip


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory) -> Path:
  return hugging_face_t5(tmp_path_factory.mktemp("hf"))


@pytest.fixture(scope="module")
def t5x(hugging_face, tmp_path_factory) -> Path:
  """The same weights in T5X's format: an index in msgpack, large arrays in zarr folders."""
  folder = tmp_path_factory.mktemp("t5x") / "checkpoint_1000000"
  folder.mkdir()
  tree = t5x_tree(huggingface.load(hugging_face).params)
  stored = "target.token_embedder.embedding"
  write_zarr(folder, stored, tree["token_embedder/embedding"])
  tree["token_embedder/embedding"] = {"driver": "zarr", "kvstore": {"driver": "file", "path": stored}}
  write_msgpack(folder / "checkpoint", tree)
  return folder


@pytest.fixture
def finetune(token_caches, tmp_path):
  return [
    "train", *MODEL, "--gin_file=runs/finetune.gin", "--gin.TASK=snli", "--gin.LENGTHS={'inputs': 32, 'targets': 4}",
    f"--gin.CACHE_DIR={token_caches}", "--gin.EVAL_SPLIT=''", "--gin.EVAL_PERIOD=0", "--gin.BATCH_SIZE=8",
    "--gin.TRAIN_STEPS=1", "--gin.FINETUNE_LEARNING_RATE=0.0", f"--gin.MODEL_DIR={tmp_path}/run",
  ]  # fmt: skip


@pytest.mark.slow
def test_a_run_starts_from_the_parameters_of_t5x(t5like, finetune, hugging_face, t5x, tmp_path):
  run = [*finetune, f"--gin.INIT_FROM={t5x}", "--gin.SCAN_LAYERS=True", "--gin.MESH.fsdp=2"]
  done = t5like(*run, devices=2)
  assert f"the parameters of the T5X checkpoint {t5x}, optimizer and step fresh" in done.stdout
  assert "dropout 0.1" in done.stdout and "note:" not in done.stdout
  # With a learning rate of 0 the first step does not change them.
  expected = huggingface.load(hugging_face, scan_layers=True).params
  jax.tree.map(np.testing.assert_array_equal, load_parameters(tmp_path / "run", 1), expected)
  assert "its own checkpoint of step 1" in t5like(*run, "--dry_run", devices=2).stdout


@pytest.mark.slow
def test_other_sizes_and_families_are_refused_before_anything_is_compiled(t5like, finetune, hugging_face, t5x):
  refused = t5like(*finetune, f"--gin.INIT_FROM={t5x}", "--gin.MLP_DIM=48", status=2).stderr
  assert "mlp_dim: checkpoint 24, config 48" in refused
  refused = t5like(*finetune, f"--gin.INIT_FROM={hugging_face}", "--gin.MLP_DIM=48", status=2).stderr
  assert (
    "does not match the configuration's model" in refused and "mlp_dim" in refused and "saved 24, now 48" in refused
  )
  bert = ["--gin_file=models/bert/tiny.gin", "--gin_file=objectives/bert_mlm.gin", "--gin_file=runs/pretrain.gin"]
  for source in (t5x, hugging_face):
    refused = t5like(
      "train", *bert, f"--gin.INIT_FROM={source}", "--gin.MODEL_DIR=unused", "--dry_run", status=2
    ).stderr
    assert "is a T5, but the model is a BERT" in refused


def test_another_vocabulary_next_to_the_weights_is_refused(t5like, finetune, hugging_face, tmp_path):
  shutil.copytree(hugging_face, tmp_path / "hf")
  shutil.copy(vocabulary_path("tiny"), tmp_path / "hf" / "spiece.model")
  t5like(*finetune, f"--gin.INIT_FROM={tmp_path}/hf", "--dry_run")
  refused = t5like(*finetune, f"--gin.INIT_FROM={tmp_path}/hf", "--gin.VOCABULARY=byte", "--dry_run", status=2).stderr
  assert "vocabulary" in refused and f"--gin.VOCABULARY={tmp_path}/hf/spiece.model" in refused


@pytest.mark.slow
def test_fewer_layers_of_a_hugging_face_folder_are_taken_and_the_card_says_so(t5like, finetune, hugging_face, tmp_path):
  fewer = [*finetune, f"--gin.INIT_FROM={hugging_face}", "--gin.NUM_DECODER_LAYERS=1"]
  done = t5like(*fewer)
  assert f"the parameters of the Hugging Face folder {hugging_face}, optimizer and step fresh" in done.stdout
  assert "dropout 0.1" in done.stdout and "note:" not in done.stdout
  lines = [line.split() for line in done.stdout.splitlines()]
  assert ["left", "out", "decoder", "14", "arrays,"] == next(line[:5] for line in lines if line[:2] == ["left", "out"])
  assert "layers 1 of 2" in done.stdout
  card = json.loads((tmp_path / "run" / "run_card.json").read_text())
  uses = {row["variable"]: row["status"] for row in card["starts_from"]["variables"]}
  assert uses["decoder/layers_0/mlp/wo/kernel"] == "taken" and uses["decoder/layers_1/mlp/wo/kernel"] == "left out"
  found, expected = load_parameters(tmp_path / "run", 1), huggingface.load(hugging_face).params
  del expected["decoder"]["layers_1"]
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  assert "its own checkpoint of step 1" in t5like(*fewer, "--dry_run").stdout


def test_sources_of_the_wrong_kind(t5like, finetune, t5x, tmp_path):
  refused = t5like(*finetune, f"--gin.INIT_FROM={tmp_path}", status=2).stderr
  assert "no checkpoint found" in refused and "a T5X checkpoint; or a Hugging Face folder" in refused
  refused = t5like(*finetune, f"--gin.RESTORE_FROM={t5x}", "--gin.INIT_FROM=None", status=2).stderr
  assert f"--gin.INIT_FROM={t5x}" in refused


def test_step_counts_of_t5x_and_missing_dropout_get_a_note(t5like, finetune, t5x):
  command = [*finetune, f"--gin.INIT_FROM={t5x}", "--dry_run"]
  out = t5like(*command, "--gin.TRAIN_STEPS=1020000", "--gin.DROPOUT_RATE=0.0").stdout
  assert "note: TRAIN_STEPS = 1,020,000 are steps of this run" in out and "note: DROPOUT_RATE = 0" in out
  assert "dropout 0" in out
  out = t5like(*command, "--gin.TRAIN_STEPS=20000").stdout
  assert "note:" not in out


@pytest.mark.slow
def test_several_processes_read_the_same_parameters(finetune, hugging_face, t5x, tmp_path):
  finish(start_pod([*finetune, f"--gin.INIT_FROM={t5x}", "--gin.DROPOUT_RATE=0.0"], hosts=2))
  expected = huggingface.load(hugging_face).params
  jax.tree.map(np.testing.assert_array_equal, load_parameters(tmp_path / "run", 1), expected)
