"""Folders of sentence-transformers: the same vectors as theirs, in both directions and in all forms of the files."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import t5like
from t5like.errors import UserError
from t5like.interop.sentence_modules import read_sentence_folder, write_sentence_modules
from t5like.models.heads import EmbeddingHead

pytestmark = pytest.mark.usefixtures("one_device")

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "sentences"
MODELS = ("bert", "t5", "gpt")


def golden(name):
  known = json.loads((GOLDEN / name / "vectors.json").read_text())
  return known["texts"], np.array(known["vectors"], np.float32)


def copied(name, folder):
  return Path(shutil.copytree(GOLDEN / name, folder / name))


def change(path, **changes):
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_vectors_are_theirs_and_survive_export(name, tmp_path):
  """Without flags: pooling, dense layer, normalization, length, lower case and special tokens are the folder's."""
  texts, vectors = golden(name)
  model = t5like.load(GOLDEN / name)
  np.testing.assert_allclose(model.embed(texts), vectors, atol=1e-5)
  model.save_hf(tmp_path / "hf")
  again = t5like.load(tmp_path / "hf")
  assert again.module == model.module
  jax.tree.map(np.testing.assert_array_equal, again.source.params, model.source.params)
  np.testing.assert_allclose(again.embed(texts[1]), vectors[1], atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_loads_there(name, tmp_path):
  """Runs where sentence-transformers is installed; make_sentence_folders.py FOLDER does the same by hand."""
  library = pytest.importorskip("sentence_transformers")
  texts, vectors = golden(name)
  t5like.load(GOLDEN / name).save_hf(tmp_path / "hf")
  np.testing.assert_allclose(library.SentenceTransformer(str(tmp_path / "hf")).encode(texts), vectors, atol=1e-5)


def test_a_written_head_is_read(tmp_path):
  head = EmbeddingHead(
    pooling="cls+mean", dense_dim=3, dense_activation="tanh", normalize=True, length=12, lower_case=True,
    prompts=(("query", "find: "),), prompt="find: ", similarity="dot",
  )  # fmt: skip
  params = {"head/dense/kernel": np.arange(12.0).reshape(4, 3), "head/dense/bias": np.arange(3.0)}
  (tmp_path / "config.json").write_text('{"model_type": "bert"}')
  write_sentence_modules(tmp_path, head, 2, {name: x.astype(np.float32) for name, x in params.items()})
  found = read_sentence_folder(tmp_path)
  assert found.head == head and found.params.keys() == params.keys()
  jax.tree.map(np.testing.assert_array_equal, dict(found.params), params)


def test_an_encoder_alone_embeds_with_the_mean(tmp_path):
  """A T5EncoderModel without modules.json: their dense layer and norm of its vectors are those of the whole folder."""
  texts, vectors = golden("t5")
  folder = copied("t5", tmp_path)
  (folder / "modules.json").unlink()
  model = t5like.load(folder)
  whole = read_sentence_folder(GOLDEN / "t5")
  expected = model.embed([whole.head.prompt + texts[0]]) @ whole.params["head/dense/kernel"]
  np.testing.assert_allclose(expected / np.linalg.norm(expected), vectors[:1], atol=1e-5)
  with pytest.raises(UserError, match="cannot generate text"):
    model.generate("a")


def test_older_folders(tmp_path):
  """Flags for poolings, length and case in sentence_bert_config.json, the transformer in its own folder, dropout."""
  texts, vectors = golden("bert")
  folder = copied("bert", tmp_path)
  inner = folder / "0_BERT"
  inner.mkdir()
  for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
    shutil.move(folder / name, inner / name)
  flags = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
  (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 12} | flags))
  (inner / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8, "do_lower_case": True}))
  change(inner / "tokenizer_config.json", model_max_length=512)
  tokenizer = json.loads((inner / "tokenizer.json").read_text())
  (inner / "tokenizer.json").write_text(json.dumps(tokenizer | {"normalizer": None}))
  modules = [
    {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for n, (path, kind) in enumerate(
      [("0_BERT", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dropout", "Dropout"), ("3_N", "Normalize")]
    )
  ]
  (folder / "modules.json").write_text(json.dumps(modules))
  np.testing.assert_allclose(t5like.load(folder).embed(texts), vectors, atol=1e-5)


def test_prompts_are_chosen_by_name_and_kept(tmp_path):
  folder = shutil.copytree(GOLDEN / "bert", tmp_path / "folder")
  named = {"query": "one two ", "document": "three "}
  change(folder / "config_sentence_transformers.json", prompts=named, similarity_fn_name="dot")
  model = t5like.load(folder)
  np.testing.assert_allclose(model.embed("four", prompt="query"), model.embed("one two four"), rtol=1e-5)
  assert not np.allclose(model.embed("four", prompt="document"), model.embed("four"))
  with pytest.raises(UserError, match="unknown prompt 'quer'\n +known +query, document\n +nearest +query"):
    model.embed("four", prompt="quer")
  model.save_hf(tmp_path / "saved")
  saved = json.loads((tmp_path / "saved/config_sentence_transformers.json").read_text())
  assert saved["prompts"] == named and saved["default_prompt_name"] is None and saved["similarity_fn_name"] == "dot"


def test_a_default_prompt_precedes_every_text(tmp_path):
  folder, (texts, _) = copied("bert", tmp_path), golden("bert")
  change(folder / "config_sentence_transformers.json", prompts={"query": "one two "}, default_prompt_name="query")
  plain = t5like.load(GOLDEN / "bert").embed([f"one two {text}" for text in texts])
  np.testing.assert_array_equal(t5like.load(folder).embed(texts), plain)


def test_another_pooling_is_that_of_the_plain_states(tmp_path):
  """An explicit pooling leaves out the folder's layers and its length."""
  model, (texts, _) = t5like.load(GOLDEN / "bert"), golden("bert")
  assert abs(np.linalg.norm(model.embed(texts[0], pooling="mean")) - 1) > 1e-2
  long = model.embed(texts[1], pooling="max")
  assert np.max(np.abs(long - model.embed(" ".join(texts[1].split()[:6]), pooling="max"))) > 1e-3


def test_directories_keep_the_head(tmp_path):
  """A model directory made from a folder embeds alike: config.gin has the head and its facts."""
  texts, vectors = golden("gpt")
  model = t5like.load(t5like.load(GOLDEN / "gpt").save(tmp_path / "run"))
  assert model.module.head.pooling == "weighted_mean+last"
  np.testing.assert_allclose(model.embed(texts), vectors, atol=1e-5)


@pytest.mark.parametrize(
  ("file", "content", "message"),
  [
    ("modules.json", "[]", "has no modules"),
    ("modules.json", '[{"idx": 0}]', "modules.json is invalid"),
    ("modules.json", "[" * 100_000, "modules.json is invalid\n.*nested too deeply"),
    ("tokenizer.json", "{}", "is not a tokenizer.json"),
    ("modules.json", '[{"type": "a.Transformer", "path": "../../etc"}]', "outside of its folder"),
    ("modules.json", '[{"type": "a.Transformer", "path": ""}, {"type": "a.CNN", "path": "c"}]', "unsupported modules"),
    ("1_Pooling/config.json", '{"pooling_mode": "median"}', "unsupported pooling"),
    ("1_Pooling/config.json", '{"pooling_mode": "mean", "include_prompt": false}', "leaves prompts out"),
    ("tokenizer_config.json", '{"model_max_length": "long"}', "invalid maximum length"),
    ("config_sentence_transformers.json", '{"default_prompt_name": "q", "prompts": {}}', "has no prompt 'q'"),
    ("config_sentence_transformers.json", '{"prompts": {"q": 3}}', "invalid prompts"),
    ("config_sentence_transformers.json", '{"truncate_dim": 8}', "cuts off embeddings"),
    ("sentence_bert_config.json", '{"transformer_task": "fill-mask"}', "transformer_task = fill-mask is not"),
    ("sentence_bert_config.json", '{"processing_kwargs": {"text": {"max_length": 6}}}', "processing_kwargs = .* not"),
    ("sentence_bert_config.json", '{"tokenizer_args": {"model_max_length": 9}}', "tokenizer_args = .* is not"),
    ("sentence_bert_config.json", '{"modality_config": {"text": {"method": "x"}}}', "modality_config = .* is not"),
  ],
)  # fmt: skip
def test_invalid_folders(file, content, message, tmp_path):
  folder = copied("bert", tmp_path)
  (folder / file).write_text(content)
  with pytest.raises(UserError, match=message):
    read_sentence_folder(folder)


def test_older_names_of_the_settings(tmp_path):
  folder = copied("bert", tmp_path)
  (folder / "sentence_roberta_config.json").write_text('{"max_seq_length": 6, "do_lower_case": true}')
  assert read_sentence_folder(folder).head.length != 6  # the usual name comes first
  (folder / "sentence_bert_config.json").unlink()
  head = read_sentence_folder(folder).head
  assert (head.length, head.lower_case) == (6, True)


def test_texts_that_keep_their_end_are_reported(tmp_path, capsys):
  folder = copied("bert", tmp_path)
  change(folder / "tokenizer_config.json", truncation_side="left")
  read_sentence_folder(folder)
  assert "keeps the end of a text that is too long" in capsys.readouterr().err


@pytest.mark.parametrize("field", [{"use_residual": True}, {"module_input_name": "token_embeddings"}])
def test_a_dense_layer_of_another_kind_is_refused(field, tmp_path):
  folder = copied("t5", tmp_path)
  change(folder / "2_Dense" / "config.json", **field)
  with pytest.raises(UserError, match=f"{next(iter(field))} = .* is not supported"):
    read_sentence_folder(folder)


def test_unknown_activation(tmp_path):
  folder = copied("t5", tmp_path)
  change(folder / "2_Dense" / "config.json", activation_function="my.Own")
  with pytest.raises(UserError, match="unsupported activation"):
    read_sentence_folder(folder)
