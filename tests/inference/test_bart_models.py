"""BART and mBART as loaded models: their own settings and special tokens, in and out of Hugging Face's format."""

import dataclasses
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import t5like
from t5like import parallel
from t5like.errors import UserError
from t5like.experiments.languages import special_tokens
from t5like.inference.converting import (
  ExportSettings,
  ImportSettings,
  export_model,
  import_checkpoint,
  save_model_directory,
)
from t5like.interop import huggingface
from t5like.models import T5, TransformerConfig
from t5like.vocabularies import load_vocabulary

SIZES = dict(embed_dim=4, mlp_dim=6, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
BART = TransformerConfig(
  **SIZES, vocab_size=50264, activation="gelu_erf", norm="layer", norm_epsilon=1e-5, norm_position="post",
  use_bias=True, scale_attention=True, attention_dropout_rate=0.0, mlp_dropout_rate=0.0, positions="learned",
  positions_per_stack=True, max_positions=24, position_offset=2, padding_id=1, start_id=2, opening_id=0,
  embedding_norm=True, scale_logits=False, final_dropout=False, initializer="normal", initializer_stddev=0.5,
)  # fmt: skip
# Of bart-large-cnn, whose embedding has no row for <mask>, scaled down.
SETTINGS = dict(
  num_beams=2, length_penalty=2.0, no_repeat_ngram_size=3, min_length=4, max_length=9, early_stopping=True,
  forced_bos_token_id=0, forced_eos_token_id=2, decoder_start_token_id=2, bos_token_id=0, eos_token_id=2,
  pad_token_id=1,
)  # fmt: skip
OURS = dict(
  method="beam", beams=2, length_penalty=2.0, penalty_form="power", early_stopping="first", no_repeat_ngram=3,
  min_length=3, max_length=8, forced_first=0, forced_end=True,
)  # fmt: skip


def params_of(config: TransformerConfig):
  tokens = np.ones((1, 2), np.int32)
  batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}
  return jax.device_get(nn.unbox(jax.jit(T5(config).init)(jax.random.key(3), batch))["params"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A Hugging Face folder with a vocabulary and a generation_config.json."""
  path = tmp_path_factory.mktemp("bart") / "hf"
  vocabulary = load_vocabulary("roberta")
  huggingface.save(path, T5(BART), params_of(BART), vocabulary=vocabulary)
  for name, content in vocabulary.original_files().items():
    (path / name).write_bytes(content)
  (path / "generation_config.json").write_text(json.dumps(SETTINGS))
  return path


@pytest.fixture(scope="module")
def model(folder, use_devices):
  with use_devices(1):
    return t5like.load(folder)


def log_probabilities(model, inputs: list[int], outputs: list[int]) -> np.ndarray:
  """Returns those of the tokens after the first of `outputs`."""
  batch = {"encoder_input_tokens": jnp.array([inputs]), "decoder_input_tokens": jnp.array([outputs[:-1]])}
  batch["encoder_lengths"] = jnp.array([len(inputs)])  # 0 is <s>, also for a T5
  logits = jax.jit(model.module.apply)({"params": model.params}, batch)["logits"][0]
  return np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.array(outputs[1:])[:, None], axis=1)[:, 0]


def test_a_folder_generates_with_its_own_settings(model):
  assert model.decoding == OURS
  own = model.generate("the cat")
  assert own == model.generate("the cat", **OURS)
  assert own.tokens == 7, "at least 4 with its start, at most 9; random weights do not end"
  output = model.generate("the cat", beams=1, max_length=2)
  assert output.ranking is None and output.tokens == 1, "greedy, with the minimum length of a shorter output"


def test_saved_models_keep_their_own_settings(model, folder, tmp_path):
  model.save(tmp_path / "saved")
  saved = t5like.load(tmp_path / "saved")
  assert saved.decoding == OURS and saved.generate("the cat") == model.generate("the cat")
  saved.save_hf(tmp_path / "back")
  assert json.loads((tmp_path / "back" / "generation_config.json").read_text()) == SETTINGS


def test_texts_have_the_tokens_of_training(model):
  """<s> text </s> for both, after the decoder's start </s>."""
  cat, dog = (model.vocabulary.encode(text) for text in ("the cat", " dog"))
  expected = log_probabilities(model, [0, *cat, 2], [2, 0, *dog, 2])
  assert model.score("the cat", " dog") == pytest.approx(expected.sum(), abs=1e-4)
  with pytest.raises(UserError, match="no row for '<mask>'"):
    model.generate("the <mask> cat")


def test_conversion_keeps_settings_tokens_and_bits(folder, tmp_path):
  import_checkpoint(ImportSettings(folder, tmp_path / "run"))
  run = t5like.load(tmp_path / "run")
  assert run.decoding == OURS and run.config == BART
  export_model(ExportSettings(tmp_path / "run", tmp_path / "back"))
  assert json.loads((tmp_path / "back" / "generation_config.json").read_text()) == SETTINGS
  old, new = (huggingface.load(path).params for path in (folder, tmp_path / "back"))
  jax.tree.map(np.testing.assert_array_equal, old, new)
  vocabulary = t5like.load(tmp_path / "back").vocabulary
  assert vocabulary.encode("the cat") == load_vocabulary("roberta").encode("the cat")


def test_a_t5_starts_as_in_training_if_padding_is_not_0(tmp_path, use_devices):
  """Batches of a vocabulary whose padding is not 0 start the decoder with end-of-sequence, and so does decoding."""
  config = TransformerConfig(**SIZES, vocab_size=50265, relative_buckets=4)
  vocabulary = load_vocabulary("roberta")
  assert special_tokens(config, vocabulary, {}).start == vocabulary.eos_id == 2
  save_model_directory(tmp_path, T5(config), params_of(config), vocabulary, "roberta", tmp_path)
  with use_devices(1):
    model = t5like.load(tmp_path)
  output = model.generate("the cat", max_length=1)
  inputs, (first,) = model.prompt_form.tokens(vocabulary.encode("the cat")), vocabulary.encode(output.text)
  assert output.score == pytest.approx(log_probabilities(model, inputs, [2, first])[0], abs=1e-4)


def language_vocabulary(folder, code_first: bool):
  """Writes a tokenizer.json as mBART's or mBART-50's, with two codes."""
  pieces = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "en_XX": 6, "ro_RO": 7, "<mask>": 8}
  tokenizer = Tokenizer(models.WordLevel(pieces, "<unk>"))
  tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
  tokenizer.add_special_tokens([name for name in pieces if name not in ("a", "b")])
  template = "en_XX $A </s>" if code_first else "$A </s> en_XX"
  special = [("en_XX", 6), ("</s>", 2)]
  tokenizer.post_processor = processors.TemplateProcessing(template, f"{template} $B", special)
  folder.mkdir(exist_ok=True)
  tokenizer.save(str(folder / "tokenizer.json"))


# mBART; the same with the language of its outputs as start in config.json (mbart-large-en-ro); mBART-50.
@pytest.mark.parametrize("start_id", [None, 7, 2])
def test_language_codes(start_id, tmp_path):
  """mBART: text </s> en_XX, and the decoder starts with ro_RO; mBART-50: en_XX text </s>, then </s> ro_RO."""
  is_50 = start_id == 2
  opened = dict(norm_position="pre", scale_embeddings=True, opening_id=None, start_id=start_id)
  config = dataclasses.replace(BART, vocab_size=9, **opened)
  folder = tmp_path / "hf"
  huggingface.save(folder, T5(config), params_of(config))
  language_vocabulary(folder, is_50)
  if is_50:
    (folder / "generation_config.json").write_text(json.dumps({"forced_bos_token_id": 7}))

  found = t5like.load(folder)
  inputs = [6, 4, 2] if is_50 else [4, 2, 6]
  assert found.prompt_form.tokens([4]) == inputs, "of tokenizer.json"
  assert found.languages == ({} if start_id is None else {"": ("en_XX", "ro_RO")})
  if start_id is not None:
    expected = log_probabilities(found, inputs, [*([2, 7] if is_50 else [7]), 5, 2])
    assert found.score("a", "b") == pytest.approx(expected.sum(), abs=1e-4)
  assert found.vocabulary.decode([6, 4, 5, 7, 2, 4]) == "a b", "without codes"

  model = t5like.load(folder, languages=("ro_RO", "en_XX"))
  inputs, start = ([7, 4, 2], [2, 6]) if is_50 else ([4, 2, 7], [6])
  model.save(tmp_path / "saved")
  for each in (model, t5like.load(tmp_path / "saved")):
    assert each.prompt_form.tokens([4]) == inputs
    assert each.decoding.get("forced_first") == (6 if is_50 else None)
    expected = log_probabilities(each, inputs, [*start, 5, 2])
    assert each.score("a", "b") == pytest.approx(expected.sum(), abs=1e-4)
  with pytest.raises(UserError, match="no language code 'de_DE'"):
    t5like.load(folder, languages=("de_DE", "en_XX"))


@pytest.mark.slow
def test_eight_devices(folder, model, tmp_path):
  """Sharded along all axes: the same outputs, and the same loss of the recipe, as with data parallelism."""
  sharded = t5like.load(folder, mesh={"data": 2, "fsdp": 2, "tensor": 2})
  one, eight = (each.generate(["the cat", "a dog ran away"]) for each in (model, sharded))
  assert [output.text for output in one] == [output.text for output in eight]
  losses = []
  for name, axes in (("data", {"data": 8}), ("all", {"data": 2, "fsdp": 2, "tensor": 2})):
    experiment = t5like.read_experiment(
      ["runs/bart.gin"], MODEL_DIR=str(tmp_path / name), TASK="novels", TRAIN_STEPS=2, BATCH_SIZE=8, MICROBATCHES=1,
      LENGTHS={"inputs": 24}, EMBED_DIM=8, MLP_DIM=12, NUM_HEADS=2, HEAD_DIM=4, NUM_ENCODER_LAYERS=2,
      NUM_DECODER_LAYERS=2, VOCAB_SIZE=50266, COMPUTE_DTYPE="float32", SCAN_LAYERS=True, DROPOUT_RATE=0.0,
      LOG_PERIOD=1,
    )  # fmt: skip
    devices = parallel.MeshAxes(**axes)
    losses.append(t5like.train(dataclasses.replace(experiment, mesh=devices)).metrics["loss"])
  assert losses[0] == pytest.approx(losses[1], rel=1e-4)
