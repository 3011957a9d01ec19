"""Hugging Face's encoders other than BERT, with every head: logits, loss and gradients by golden files, and bits."""

import json
import shutil

import flax.linen as nn
import jax
import numpy as np
import pytest
from head_batches import compare, head_batch
from round_trips import check_round_trip
from safetensors.numpy import load_file
from zoo_goldens import all_cases, family, golden, parameters, take_results

from t5like.errors import UserError
from t5like.interop import huggingface
from t5like.interop.hf_fields import guess_model_type
from t5like.models import ELECTRA, SpanBERT, TransformerConfig
from t5like.models.heads import EmbeddingHead, attach_head

CASES = all_cases("zoo")
# One class per kind of behavior runs by default: position offsets and padding that is scored; shared layers and
# factorized embeddings; a score per token; disentangled attention of version 1, and of version 2 with its convolution.
DEFAULT = {
  "RobertaForQuestionAnswering",
  "AlbertForMaskedLM",
  "ElectraForPreTraining",
  "DebertaForMaskedLM",
  "DebertaV2ForQuestionAnswering-10",
}


@pytest.mark.parametrize("name, case", parameters(CASES, *DEFAULT))
@pytest.mark.parametrize("scan_layers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_logits_loss_and_gradients_equal_transformers(name, case, scan_layers, tmp_path):
  arrays = golden(name, case, tmp_path / "theirs")
  logits, loss, gradients = take_results(arrays)
  imported = huggingface.load(tmp_path / "theirs", scan_layers=scan_layers)
  batch = head_batch(imported.model, arrays)
  # Our batches are padded with 0, whatever the model's padding is.
  batch["encoder_input_tokens"] = batch["encoder_input_tokens"] * batch["encoder_segment_ids"]
  compare(imported, batch, logits, float(loss), gradients, tmp_path)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name, case", [pytest.param(name, case, id=case) for name, case in CASES])
def test_round_trip_is_bit_exact(name, case, tmp_path):
  golden(name, case, tmp_path / "theirs")
  scanned = len(case) % 2 == 0  # each half of the classes in one layout
  check_round_trip(tmp_path / "theirs", tmp_path / "ours", scanned, changed=("classifier_dropout", "dtype"))


def test_a_model_directory_keeps_the_family(tmp_path):
  """from_hf writes a config.gin with the family; to_hf gives the same folder."""
  from t5like.inference.converting import ExportSettings, ImportSettings, export_model, import_checkpoint
  from t5like.inference.sources import open_source

  golden("roberta", "XLMRobertaForSequenceClassification", tmp_path / "hf")
  import_checkpoint(ImportSettings(tmp_path / "hf", tmp_path / "run"))
  assert open_source(tmp_path / "run").module == huggingface.load(tmp_path / "hf").model
  export_model(ExportSettings(tmp_path / "run", tmp_path / "back"))
  theirs, ours = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("hf", "back"))
  for field in ("architectures", "model_type", "pad_token_id", "max_position_embeddings", "id2label"):
    assert ours[field] == theirs[field], field
  before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "back"))
  assert {n: x.tobytes() for n, x in before.items()} == {n: x.tobytes() for n, x in after.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_sentence_embeddings_go_out_and_in(name, tmp_path):
  """A folder of sentence-transformers has the family's class without heads; other parts of a file are not reported."""
  case = next(case for own, case in CASES if own == name and case.endswith("MaskedLM"))
  golden(name, case, tmp_path / "theirs")
  imported = huggingface.load(tmp_path / "theirs")
  model = attach_head(imported.model, EmbeddingHead("ranking", texts=2, pooling="mean", length=9))
  params = {"backbone": {k: v for k, v in imported.params.items() if k in ("token_embedder", "encoder")}}
  huggingface.save(tmp_path / "ours", model, params)
  config = json.loads((tmp_path / "ours" / "config.json").read_text())
  assert config["architectures"] == [case.replace("ForMaskedLM", "Model")]
  again = huggingface.load(tmp_path / "ours")
  assert again.model.backbone == model.backbone and again.model.head.pooling == "mean"
  jax.tree.map(np.testing.assert_array_equal, again.params, params)
  shutil.copy(tmp_path / "theirs" / "model.safetensors", tmp_path / "ours")  # with the head for masked tokens
  assert huggingface.load(tmp_path / "ours").report.unexpected == []


def test_the_discriminator_of_a_pretrained_electra_is_exported(tmp_path):
  """With the sum of the generator's tables and its own differences; the generator and SpanBERT's head stay behind."""
  sizes = dict(
    vocab_size=11, embed_dim=8, mlp_dim=12, num_heads=2, num_encoder_layers=1, positions="learned", max_positions=6,
    num_token_types=2, norm="layer", norm_position="post", embedding_norm=True, use_bias=True, mlm_head=True,
    activation="gelu_erf", scale_attention=True, scale_logits=False, final_dropout=False,
  )  # fmt: skip
  batch = {"encoder_input_tokens": np.array([[3, 4, 5, 0]], np.int32)}
  for model in (
    ELECTRA(TransformerConfig(**sizes, embedding_dim=4), generator_share=0.5, embedding_sharing="disentangled"),
    SpanBERT(TransformerConfig(**sizes)),
  ):
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), batch))["params"]
    params = jax.tree.map(lambda x: np.asarray(x) + 0.1, params)
    folder = tmp_path / type(model).__name__
    huggingface.save(folder, model, params)
    loaded = huggingface.load(folder)
    name = "replaced_logits" if isinstance(model, ELECTRA) else "logits"
    found, expected = (
      jax.jit(m.apply)({"params": p}, batch)[name] for m, p in ((loaded.model, loaded.params), (model, params))
    )
    np.testing.assert_allclose(found[:, :3], expected[:, :3], atol=1e-5)


@pytest.mark.parametrize(
  "name, case, fields, words",
  [
    ("electra", "ElectraForMultipleChoice", {"summary_type": "mean"}, "summary_type = 'mean' is not supported"),
    ("electra", "ElectraForMaskedLM", {"hidden_act": "relu"}, "activation = 'relu' before its output"),
    ("albert", "AlbertForMaskedLM", {"inner_group_num": 2}, "several layers in a group"),
    ("deberta", "DebertaV2ForSequenceClassification", {"pooler_hidden_act": "tanh"}, "pooler_hidden_act = 'tanh'"),
    ("deberta", "DebertaForMaskedLM", {"pos_att_type": "c2p"}, "pos_att_type = .'c2p'. is not supported"),
    ("deberta", "DebertaV2ForMaskedLM", {"position_buckets": 1}, "position_buckets = 1 is not supported"),
    ("deberta", "DebertaV2ForMaskedLM", {"position_buckets": 64, "max_relative_positions": 64}, "buckets = 64 is not"),
    ("deberta", "DebertaForMaskedLM", {"position_biased_input": True}, "position_biased_input = True"),
    ("roberta", "RobertaForMaskedLM", {"tie_word_embeddings": False}, "not tied"),
    ("roberta", "RobertaForMaskedLM", {"pad_token_id": 99}, "max_positions: -87"),
  ],
)
def test_what_is_not_supported_is_rejected(name, case, fields, words, tmp_path):
  golden(name, case, tmp_path)
  path = tmp_path / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))
  with pytest.raises(UserError, match=words):
    huggingface.load(tmp_path)


def test_the_family_of_older_files_is_guessed(tmp_path):
  """By the name of the class; without one, by fields that only a family has."""
  for name, case in CASES:
    config = json.loads(family(name)[case]["description"].tobytes())["config"]
    kind = config.pop("model_type")
    assert guess_model_type(config) == kind
    if kind in ("roberta", "distilbert", "albert", "electra"):
      assert guess_model_type({k: v for k, v in config.items() if k != "architectures"}) == kind
