"""Hugging Face's encoders other than BERT, with every head: logits, loss and gradients by golden files, and bits."""

import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from head_batches import compare, head_batch
from round_trips import round_trip
from safetensors.numpy import load_file, save_file
from zoo_weights import draw

from t5like.interop import huggingface
from t5like.models.heads import EmbeddingHead, attach_head

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "zoo"


@functools.cache
def family(name: str) -> dict[str, dict]:
  """Returns the arrays of each class by name."""
  cases: dict[str, dict] = {}
  with np.load(GOLDEN / f"{name}.npz") as arrays:
    for path in arrays.files:
      case, _, array = path.partition("/")
      cases.setdefault(case, {})[array] = arrays[path]
  return cases


CASES = [(path.stem, case) for path in sorted(GOLDEN.glob("*.npz")) for case in family(path.stem)]
# One class per kind of behavior runs by default: position offsets and padding that is scored; a head with its own
# dropout; shared layers and factorized embeddings.
DEFAULT = {
  "RobertaForQuestionAnswering",
  "DistilBertForSequenceClassification",
  "AlbertForMaskedLM",
  "ElectraForPreTraining",
  "DebertaForMaskedLM",
  "DebertaV2ForQuestionAnswering-10",
}


def golden(name: str, case: str, folder: Path) -> dict[str, np.ndarray]:
  """Writes the folder of a model, as `save_pretrained` does; returns inputs and results."""
  arrays = dict(family(name)[case])
  described = json.loads(arrays.pop("description").tobytes())
  folder.mkdir(exist_ok=True)
  (folder / "config.json").write_text(json.dumps(described["config"]))
  save_file(draw(described["tensors"], described["seed"]), folder / "model.safetensors")
  return arrays | {"shapes": {n: tuple(shape) for n, shape in sorted(described["tensors"].items())}}


def cases(*default: str):
  return [
    pytest.param(name, case, id=case, marks=[] if case in default else [pytest.mark.slow]) for name, case in CASES
  ]


@pytest.mark.parametrize("name, case", cases(*DEFAULT))
@pytest.mark.parametrize("scan_layers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_logits_loss_and_gradients_equal_transformers(name, case, scan_layers, tmp_path):
  arrays = golden(name, case, tmp_path / "theirs")
  logits, loss, joined, shapes = (arrays.pop(key) for key in ("logits", "loss", "gradients", "shapes"))
  cuts = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
  gradients = {n: x.reshape(shapes[n]) for n, x in zip(shapes, np.split(joined, cuts), strict=True)}
  imported = huggingface.load(tmp_path / "theirs", scan_layers=scan_layers)
  batch = head_batch(imported.model, arrays)
  # Our batches are padded with 0, whatever the model's padding is.
  batch["encoder_input_tokens"] = batch["encoder_input_tokens"] * batch["encoder_segment_ids"]
  compare(imported, batch, logits, float(loss), gradients, tmp_path)


@pytest.mark.parametrize("name, case", [pytest.param(name, case, id=case) for name, case in CASES])
def test_round_trip_is_bit_exact(name, case, tmp_path):
  golden(name, case, tmp_path / "theirs")
  scanned = len(case) % 2 == 0  # each half of the classes in one layout
  imported = round_trip(tmp_path / "theirs", tmp_path / "ours", scanned)
  old, new = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("theirs", "ours"))
  same = {k: v for k, v in new.items() if k in old and v != old[k] and k not in ("classifier_dropout", "dtype")}
  assert not same, "config.json both ways"
  assert huggingface.load(tmp_path / "ours", scan_layers=scanned).model == imported.model


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
