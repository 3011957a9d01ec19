"""Hugging Face's classes with heads, in and out: bits, labels, logits, loss and gradients, by golden files."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from head_batches import compare, head_batch
from infer_models import words as texts_of
from infer_models import write_tokenizer
from round_trips import round_trip
from safetensors.numpy import load_file, save_file

import t5like
from t5like.errors import UserError
from t5like.experiments.languages import special_tokens
from t5like.inference.converting import save_hugging_face
from t5like.inference.prompts import prompt_form, with_rows_of
from t5like.interop import huggingface
from t5like.interop.hf_tokenizers import TextSpecialTokens, save_tokenizer
from t5like.interop.layouts import expected_shapes, unflatten
from t5like.models import GPT, TransformerConfig
from t5like.models.heads import (
  ClassificationHead,
  EmbeddingHead,
  RegressionHead,
  SpanHead,
  TaggingHead,
  WithHead,
  attach_head,
)
from t5like.objectives.segments import PairForm
from t5like.objectives.spans import make_windows
from t5like.vocabularies import load_vocabulary, vocabulary_in

pytestmark = pytest.mark.usefixtures("one_device")

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "heads"
CASES = sorted(path.name for path in GOLDEN.iterdir())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "case, scan_layers",
  [(case, False) for case in CASES] + [("BertForQuestionAnswering", True), ("T5ForSequenceClassification", True)],
)
def test_logits_loss_and_gradients_equal_transformers(case, scan_layers, tmp_path):
  golden = dict(np.load(GOLDEN / case / "outputs.npz"))
  logits, loss, joined = (golden.pop(name) for name in ("logits", "loss", "gradients"))
  shapes = {name: x.shape for name, x in sorted(load_file(GOLDEN / case / "model.safetensors").items())}
  cuts = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
  gradients = {n: x.reshape(shapes[n]) for n, x in zip(shapes, np.split(joined, cuts), strict=True)}
  imported = huggingface.load(GOLDEN / case, scan_layers=scan_layers)
  compare(imported, head_batch(imported.model, golden), logits, float(loss), gradients, tmp_path)


def test_texts_of_an_imported_decoder_end_as_its_tokenizer_ends_them(tmp_path):
  """GPT-2's adds nothing: the head reads the last token of the text itself."""
  folder = shutil.copytree(GOLDEN / "GPT2ForSequenceClassification", tmp_path / "folder")
  write_tokenizer(folder, 23, eos=2)
  golden = np.load(folder / "outputs.npz")
  texts = [texts_of(ids[mask == 1]) for ids, mask in zip(golden["input_ids"], golden["attention_mask"], strict=True)]
  model = t5like.load(folder)
  found = [list(label.probabilities.values()) for label in model.classify(texts)]
  np.testing.assert_allclose(found, jax.nn.softmax(golden["logits"]), rtol=1e-4)
  assert model.classify("").probabilities
  one, two = (" ".join(text.split()[:4]) for text in texts[:2])
  pair = model.classify((one, two))
  for same in ([(one, two)], [[one, two]], [{"text": one, "text_pair": two}]):
    assert model.classify(same) == [pair]
  assert model.classify({"text": one}) == model.classify(one) != pair
  for wrong in ([(texts[0], None)], [("a", "b", "c")], [{"texts": "a"}], [None], [5], [()]):
    with pytest.raises(t5like.errors.UserError, match="not a text or a pair"):
      model.classify(wrong)
  with pytest.raises(t5like.errors.UserError, match="not a text or a pair"):
    model.classify(None)
  model.save_hf(tmp_path / "saved")
  again = t5like.load(tmp_path / "saved")
  assert again.prompt_form == model.prompt_form and again.classify(texts[0]) == model.classify(texts[0])


def test_texts_of_an_exported_gpt2_classifier_end_as_its_tokenizer_json_says(tmp_path):
  """Its vocabulary is read from vocab.json and merges.txt, which do not say it."""
  vocabulary = load_vocabulary("gpt2")
  eos = vocabulary.eos_id
  save_tokenizer(tmp_path, vocabulary, TextSpecialTokens(None, eos), 16)
  found = load_vocabulary(str(vocabulary_in(tmp_path)))
  assert found.path.name != "tokenizer.json"
  config = TransformerConfig(vocab_size=vocabulary.vocab_size, embed_dim=8, num_heads=2, head_dim=4, mlp_dim=8)
  model = attach_head(GPT(config), ClassificationHead(("no", "yes"), pooling="last"))
  assert prompt_form(model, found, None).tokens([5, 6]) == [5, 6, eos]


def test_a_question_has_any_number_of_choices(tmp_path):
  """As in transformers: each choice is scored by itself, so the odds of two do not depend on the others."""
  folder = shutil.copytree(GOLDEN / "BertForMultipleChoice", tmp_path / "folder")
  write_tokenizer(folder, 23, cls=20, sep=21, mask=19, eos=21)
  model = t5like.load(folder)
  choices = ["w5 w6", "w7", "w8 w9 w10"]
  (one,), (two, three) = (model.choose(["w3 w4"], [choices[:1]]), model.choose(["w3 w4"] * 2, [choices[:2], choices]))
  assert one.probabilities == {choices[0]: 1.0} and list(three.probabilities) == choices
  assert three.label == max(choices, key=three.probabilities.get)
  assert sum(three.probabilities.values()) == pytest.approx(1.0)
  odds = [found.probabilities[choices[0]] / found.probabilities[choices[1]] for found in (two, three)]
  assert odds[0] == pytest.approx(odds[1], rel=1e-4) and odds[0] != pytest.approx(1.0, abs=1e-4)
  # [CLS] question [SEP] choice [SEP], scored by the model itself.
  rows = [[20, 3, 4, 21, 5, 6, 21, 0, 0], [20, 3, 4, 21, 7, 21, 0, 0, 0], [20, 3, 4, 21, 8, 9, 10, 21, 0]]
  tokens, first = np.array([rows], np.int32), (np.arange(9) > 3).astype(np.int32)
  batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": (tokens > 0).astype(np.int32)}
  logits = model.module.apply({"params": model.params}, batch | {"encoder_token_types": first * (tokens > 0)})
  expected = jax.nn.softmax(logits["label_logits"][0])
  np.testing.assert_allclose(list(three.probabilities.values()), expected, rtol=1e-4)
  assert model.choose("w3 w4", choices) == model.choose(["w3 w4"], choices)[0]
  for wrong in ([], "w5", [["w5"], ["w6"]]):
    with pytest.raises(UserError):
      model.choose("w3", wrong)


@pytest.fixture
def without_padding(tmp_path) -> Path:
  """A classifier of GPT-2 whose tokenizer has no padding token."""
  folder = shutil.copytree(GOLDEN / "GPT2ForSequenceClassification", tmp_path / "folder")
  write_tokenizer(folder, 23, eos=2)
  settings = json.loads((folder / "tokenizer_config.json").read_text())
  (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if k != "pad_token"}))
  return folder


def test_the_end_of_sequence_pads_texts_that_do_not_end_with_it(without_padding, tmp_path):
  """transformers' decoders refuse to classify several texts without a padding token."""
  t5like.load(without_padding).save_hf(tmp_path / "saved")
  assert json.loads((tmp_path / "saved/config.json").read_text())["pad_token_id"] == 2
  assert json.loads((tmp_path / "saved/tokenizer_config.json").read_text())["pad_token"] == "w2"


def test_the_end_of_sequence_pads_texts_to_embed(without_padding, tmp_path):
  """sentence-transformers does not encode without a padding token, and masks it."""
  loaded = t5like.load(without_padding)
  model = attach_head(loaded.module.backbone, EmbeddingHead(pooling="mean", length=8))
  params, vocabulary = {"backbone": loaded.params["backbone"]}, loaded.vocabulary
  assert prompt_form(model, vocabulary, None).end == 2  # its texts end with it, as in its training
  save_hugging_face(tmp_path / "saved", model, params, vocabulary, None)
  assert json.loads((tmp_path / "saved/config.json").read_text())["pad_token_id"] == 2
  assert json.loads((tmp_path / "saved/tokenizer_config.json").read_text())["pad_token"] == "w2"


@pytest.mark.sampled(15)
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_round_trip_is_bit_exact_and_keeps_the_labels(case, scan_layers, tmp_path):
  imported = round_trip(GOLDEN / case, tmp_path, scan_layers)
  old, new = (json.loads((folder / "config.json").read_text()) for folder in (GOLDEN / case, tmp_path))
  for field in ("architectures", "id2label", "label2id", "problem_type"):
    if field in new:
      assert new[field] == old.get(field, new[field]), field
  head = getattr(imported.model, "head", None)
  if hasattr(head, "labels"):
    assert list(head.labels) == list(old["id2label"].values()) == list(new["id2label"].values())
  again = huggingface.load(tmp_path, scan_layers=scan_layers)
  assert again.model == imported.model


def test_heads_are_of_the_right_kind():
  kinds = {case: type(getattr(huggingface.load(GOLDEN / case).model, "head", None)).__name__ for case in CASES}
  assert kinds == {
    "BertForMultipleChoice": "MultipleChoiceHead", "BertForNextSentencePrediction": "NoneType",
    "BertForQuestionAnswering": "SpanHead", "BertForSequenceClassification": "ClassificationHead",
    "BertForTokenClassification": "TaggingHead", "GPT2ForQuestionAnswering": "SpanHead",
    "GPT2ForSequenceClassification": "ClassificationHead", "GPT2ForTokenClassification": "TaggingHead",
    "T5ForQuestionAnswering": "SpanHead", "T5ForSequenceClassification": "ClassificationHead",
    "T5ForTokenClassification": "TaggingHead", "regression": "RegressionHead",
    "multi_label": "MultiLabelHead",
  }  # fmt: skip
  assert not huggingface.load(GOLDEN / "BertForTokenClassification").model.config.pooler
  assert not any("decoder" in name for name in huggingface.load(GOLDEN / "T5ForTokenClassification").params["backbone"])


@pytest.fixture
def changed(tmp_path):
  def change(case, tensors=lambda t: t, **fields) -> Path:
    """Copies a golden folder with changed tensors and config fields (None: removed)."""
    save_file(tensors(load_file(GOLDEN / case / "model.safetensors")), tmp_path / "model.safetensors")
    config = json.loads((GOLDEN / case / "config.json").read_text()) | fields
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return tmp_path

  return change


def test_labels_without_names_and_in_another_order(changed):
  case = "BertForSequenceClassification"
  folder = changed(case, id2label=None, label2id=None, num_labels=3)
  assert huggingface.load(folder).model.head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
  folder = changed(case, id2label={"2": "c", "0": "a", "1": "b"}, label2id=None)
  assert huggingface.load(folder).model.head.labels == ("a", "b", "c")


@pytest.mark.parametrize(
  "fields, words",
  [
    (dict(id2label=["a", "b", "c"]), "invalid id2label"),
    (dict(id2label={}), "invalid id2label"),
    (dict(id2label={"0": "a", "2": "b"}), "invalid id2label"),
    (dict(id2label={"x": "a"}), "invalid id2label"),
    (dict(id2label={"0": "a", "1": "a", "2": "b"}), "different names"),
    (dict(id2label={"0": "a", "1": "b"}), "id2label or num_labels"),  # the file has three rows
    (dict(id2label=None, num_labels=10**12), "invalid num_labels"),
    (dict(id2label=None, num_labels="3"), "invalid num_labels"),
    (dict(problem_type="multi_label"), "unknown problem_type: 'multi_label'"),
    (dict(problem_type=["regression"]), "problem_type"),
    (dict(problem_type="regression"), "several numbers"),
    (dict(classifier_dropout="high"), "invalid dropout"),
    (dict(classifier_dropout=1.5), "invalid dropout"),
    (dict(quantization_config={"load_in_8bit": True}), "are quantized"),
  ],
)
def test_invalid_labels_and_unsupported_problems_are_rejected(changed, fields, words):
  with pytest.raises(UserError) as error:
    huggingface.load(changed("BertForSequenceClassification", **fields))
  assert words in str(error.value)


def test_missing_and_unexpected_tensors(changed):
  case = "BertForQuestionAnswering"
  with pytest.raises(UserError, match="1 tensors of the model are missing") as error:
    huggingface.load(changed(case, lambda t: {n: x for n, x in t.items() if n != "qa_outputs.bias"}))
  assert "qa_outputs.bias" in str(error.value)
  # Older files of this class have a pooler that it does not use.
  pooler = {"bert.pooler.dense.weight": np.zeros((8, 8), np.float32), "bert.pooler.dense.bias": np.zeros(8, np.float32)}
  imported = huggingface.load(changed(case, lambda t: t | pooler))
  assert sorted(imported.report.unexpected) == sorted(pooler) and not imported.model.config.pooler


def test_other_classes_load_without_their_head(changed):
  """An unknown head is reported, as before there were heads."""
  folder = changed("BertForTokenClassification", architectures=["BertForSomethingElse"])
  imported = huggingface.load(folder)
  assert not isinstance(imported.model, WithHead)
  assert imported.report.unexpected == ["classifier.bias", "classifier.weight"]


def test_heads_that_hugging_face_does_not_have_are_not_exported(tmp_path):
  bert = huggingface.load(GOLDEN / "BertForNextSentencePrediction").model
  gpt = huggingface.load(GOLDEN.parent / "gpt1").model
  for model, words in (
    (attach_head(bert, ClassificationHead(labels=("a", "b"), pooling="mean")), "does not support pooling = 'mean'"),
    (attach_head(bert, TaggingHead(labels=("a", "b"), mix_layers=True)), "does not support mix_layers = True"),
    (attach_head(bert, RegressionHead(hidden="tanh")), "does not support hidden = 'tanh'"),
    (attach_head(gpt, SpanHead()), "no class for SpanHead on this GPT"),
  ):
    assert isinstance(model.backbone, (type(bert), GPT))
    with pytest.raises(UserError, match=words):
      huggingface.save(tmp_path, model, {"backbone": {}, "head": {}})


@pytest.mark.parametrize("name", ["T5ForQuestionAnswering", "GPT2ForQuestionAnswering"])
def test_a_regression_on_any_backbone_goes_out_and_in(name, tmp_path):
  """Heads without goldens of their own: the classes' tensors are those of a classification."""
  model = attach_head(huggingface.load(GOLDEN / name).model, RegressionHead(dropout_rate=0.0))
  shapes = expected_shapes(model)
  rng = np.random.default_rng(0)
  params = unflatten({path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()})
  huggingface.save(tmp_path, model, params)
  assert json.loads((tmp_path / "config.json").read_text())["problem_type"] == "regression"
  again = huggingface.load(tmp_path)
  assert again.model == model and again.report.unexpected == []
  jax.tree.map(np.testing.assert_array_equal, again.params, params)


def test_mt5_has_the_classes_of_t5(changed, tmp_path):
  case = "T5ForSequenceClassification"
  imported = huggingface.load(changed(case, model_type="mt5", architectures=[f"M{case}"]))
  assert isinstance(imported.model.head, ClassificationHead) and imported.report.unexpected == []
  huggingface.save(tmp_path / "out", imported.model, imported.params, imported.model_type)
  fields = json.loads((tmp_path / "out" / "config.json").read_text())
  assert fields["architectures"] == [f"M{case}"] and fields["model_type"] == "mt5"


def test_a_model_directory_keeps_the_head(tmp_path):
  """from_hf writes a config.gin with the head and its labels; to_hf gives the same folder."""
  from t5like.inference.converting import ExportSettings, ImportSettings, export_model, import_checkpoint
  from t5like.inference.sources import open_source

  case, labels = "T5ForSequenceClassification", ['it\'s\n"so"', "%MACRO", "@T5()"]  # names are data in gin, too
  shutil.copytree(GOLDEN / case, tmp_path / "hf")
  config = json.loads((tmp_path / "hf" / "config.json").read_text()) | {"id2label": dict(enumerate(labels))}
  (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
  import_checkpoint(ImportSettings(tmp_path / "hf", tmp_path / "run"))
  opened = open_source(tmp_path / "run")
  assert opened.module == huggingface.load(tmp_path / "hf").model and opened.module.head.labels == tuple(labels)
  export_model(ExportSettings(tmp_path / "run", tmp_path / "back"))
  before, after = (load_file(folder / "model.safetensors") for folder in (GOLDEN / case, tmp_path / "back"))
  assert {n: x.tobytes() for n, x in before.items()} == {n: x.tobytes() for n, x in after.items()}
  assert list(json.loads((tmp_path / "back" / "config.json").read_text())["id2label"].values()) == labels
  jax.tree.map(
    np.testing.assert_array_equal, opened.read(None, False, None), huggingface.load(tmp_path / "back").params
  )


def test_the_threshold_of_questions_without_an_answer_is_kept(changed, tmp_path):
  """Tuned in training, it goes to config.json; a folder with it gives it to the model directory."""
  from t5like.inference.converting import ExportSettings, ImportSettings, export_model, import_checkpoint

  case = "BertForQuestionAnswering"
  import_checkpoint(ImportSettings(changed(case), tmp_path / "run"))
  rows = [{"step": step, "kind": "eval/squad_v2_spans", "best_f1_thresh": value} for step, value in ((0, -1.5), (9, 3))]
  (tmp_path / "run" / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  export_model(ExportSettings(tmp_path / "run", tmp_path / "back"))
  assert huggingface.load(tmp_path / "back").model.head.no_answer_threshold == -1.5
  with pytest.raises(UserError, match="invalid no_answer_threshold"):
    huggingface.load(changed(case, no_answer_threshold="high"))


def test_questions_for_a_decoder_are_as_in_its_tokenizer():
  """The ids of GPT-2's tokenizer(question, passage) of Hugging Face: nothing between the texts or after them."""
  model, vocabulary = huggingface.load(GOLDEN / "GPT2ForQuestionAnswering").model, load_vocabulary("gpt2")
  special = special_tokens(model.config, vocabulary, {})
  form = PairForm.of(with_rows_of(special, model, prompt_form(model, vocabulary, None)))
  windows = make_windows(vocabulary, "Where is it?", "Paris is far", length=9, form=form)
  assert windows.tokens.tolist() == [[8496, 318, 340, 30, 40313, 318, 1290, 0, 0]] and windows.lengths.tolist() == [7]
