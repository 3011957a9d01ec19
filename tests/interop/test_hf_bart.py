"""Hugging Face's BART and mBART: logits, loss and gradients by golden files, bits, and heads."""

import json

import numpy as np
import pytest
from bart_folders import BART, MBART, arrays_of, write_folder
from head_batches import compare, head_batch
from round_trips import check_round_trip
from safetensors.numpy import load_file, save_file

from t5like.errors import UserError
from t5like.interop import huggingface
from t5like.interop.hf_fields import guess_model_type

pytestmark = pytest.mark.usefixtures("one_device")

CASES = [BART, MBART, "BartForSequenceClassification", "BartForQuestionAnswering"]


def golden_batch(case: str, model) -> dict[str, np.ndarray]:
  inputs = {n: x for n, x in arrays_of(case).items() if n not in ("description", "gradients", "logits", "loss")}
  if case not in (BART, MBART):
    return head_batch(model, inputs)
  inputs = {name: x.astype(np.int32) for name, x in inputs.items()}
  return {
    "encoder_input_tokens": inputs["input_ids"],
    "decoder_input_tokens": inputs["decoder_input_ids"],
    "decoder_target_tokens": np.maximum(inputs["labels"], 0),
    "decoder_loss_weights": (inputs["labels"] >= 0).astype(np.float32),
  }


def cases(*default: str):
  return [pytest.param(case, marks=[] if case in default else [pytest.mark.slow]) for case in CASES]


@pytest.mark.parametrize("case", cases(MBART, "BartForQuestionAnswering"))
@pytest.mark.parametrize("scan_layers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_logits_loss_and_gradients_equal_transformers(case, scan_layers, tmp_path):
  shapes, arrays = write_folder(case, tmp_path / "theirs"), arrays_of(case)
  trained = {name: shape for name, shape in sorted(shapes.items()) if name != "final_logits_bias"}
  cuts = np.cumsum([int(np.prod(shape)) for shape in trained.values()])[:-1]
  parts = np.split(arrays["gradients"], cuts)
  gradients = {name: part.reshape(trained[name]) for name, part in zip(trained, parts, strict=True)}
  if "final_logits_bias" in shapes:  # a buffer in transformers
    gradients["final_logits_bias"] = np.zeros(shapes["final_logits_bias"], np.float32)
  imported = huggingface.load(tmp_path / "theirs", scan_layers=scan_layers)
  assert imported.model.config.logits_bias == (case == MBART), "zeros are no parameters"
  batch = golden_batch(case, imported.model)
  compare(imported, batch, arrays["logits"], float(arrays["loss"]), gradients, tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_round_trip_is_bit_exact(case, tmp_path):
  write_folder(case, tmp_path / "theirs")
  changed = ("dtype", "label2id") if case == "BartForSequenceClassification" else ("dtype",)  # theirs has no numbers
  not_read = ("final_logits_bias",) if case == BART else ()
  check_round_trip(tmp_path / "theirs", tmp_path / "ours", len(case) % 2 == 0, changed, not_read)


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"decoder_ffn_dim": 9}, "different ffn_dim"),
    ({"decoder_attention_heads": 3}, "different attention_heads"),
    ({"decoder_start_token_id": 29}, "start_id: 29"),
    ({"pad_token_id": -1}, "padding_id: -1"),
  ],
)
def test_what_is_not_supported_is_rejected(fields, words, tmp_path):
  write_folder(BART, tmp_path)
  path = tmp_path / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))
  with pytest.raises(UserError, match=words):
    huggingface.load(tmp_path)


def test_a_model_without_output_projection_is_tied(tmp_path):
  """The published files of bart-base and -large are of the class without one, whose names have no prefix."""
  write_folder(BART, tmp_path)
  tensors = load_file(tmp_path / "model.safetensors")
  plain = {name.removeprefix("model."): x for name, x in tensors.items() if name != "final_logits_bias"}
  save_file(plain | {"encoder.embed_tokens.weight": plain["shared.weight"]}, tmp_path / "model.safetensors")
  path = tmp_path / "config.json"
  config = json.loads(path.read_text()) | {"architectures": ["BartModel"]}
  path.write_text(json.dumps(config))
  imported = huggingface.load(tmp_path)
  assert imported.report.copies == ["encoder.embed_tokens.weight"] and not imported.report.unexpected
  del config["model_type"]
  assert guess_model_type(config) == "bart"
  assert guess_model_type({k: v for k, v in config.items() if k != "architectures"}) == "bart"
