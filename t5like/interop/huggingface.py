"""Hugging Face checkpoints, both ways: a folder with config.json and safetensors, bit for bit.

Every tensor keeps its dtype: `load` then `save` gives the same bits. Nothing
here needs torch or transformers.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

from t5like.errors import UserError, nearest
from t5like.interop import hf_bert, hf_gpt, hf_t5, safetensors_files
from t5like.interop.hf_tokenizers import token_ids
from t5like.interop.layouts import check_parameters, flatten, stack_layers, unflatten, unstack_layers
from t5like.interop.mapping import ImportReport, export_tensors, import_tensors, refuse_missing
from t5like.interop.safetensors_files import TensorFolder, read_json
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.vocabularies import Vocabulary

# model_type of config.json -> how its tensors are named, and our model.
FAMILIES: dict[str, tuple[ModuleType, type]] = {
  **{kind: (hf_t5, T5) for kind in hf_t5.MODEL_TYPES},
  **{kind: (hf_bert, BERT) for kind in hf_bert.MODEL_TYPES},
  **{kind: (hf_gpt, GPT) for kind in hf_gpt.MODEL_TYPES},
}
# Where a checkpoint may hold an output projection, and the embedding it is a copy of when tied.
_OUTPUTS = ("lm_head.weight", "cls.predictions.decoder.weight")
_EMBEDDINGS = ("shared.weight", "wte.weight", "tokens_embed.weight", "embeddings.word_embeddings.weight")
_GENERATION = "generation_config.json"


@dataclasses.dataclass(frozen=True)
class Imported:
  model: T5 | BERT | GPT
  params: dict  # nested, numpy arrays in the checkpoint's own dtypes
  report: ImportReport
  model_type: str  # as config.json says


def load(folder: Path | str, **changes: object) -> Imported:
  """Reads a checkpoint; `changes` are fields of TransformerConfig (scan_layers=True, compute_dtype=...)."""
  folder = Path(folder)
  hf, tensors = read_config(folder), TensorFolder(folder)
  family, model_class = FAMILIES[hf["model_type"]]
  names = {name.removeprefix(family.PREFIX): name for name in tensors.names()}

  def read(name):
    return tensors.read(names[name])

  wanted = [name for name in names if not any(re.fullmatch(pattern, name) for pattern in family.IGNORED)]
  config = _config(family, hf, set(names), _tied(names, read), folder)
  params, report = import_tensors(family.rules(config), wanted, read)
  refuse_missing(report, str(folder))
  dtype = str(params["token_embedder/embedding"].dtype)
  model = model_class(dataclasses.replace(config, **{"param_dtype": dtype} | changes))
  if model.config.scan_layers:
    params = stack_layers(params)
  check_parameters(model, params, str(folder))
  return Imported(model, unflatten(params), report.renamed(names), hf["model_type"])


def save(
  folder: Path | str,
  model: T5 | BERT | GPT,
  params: Mapping,
  model_type: str | None = None,
  vocabulary: Vocabulary | None = None,
) -> None:
  """Writes a folder that transformers' `from_pretrained` reads; params scanned or not.

  `model_type="mt5"` names the twin of T5 that Hugging Face keeps for mT5. `vocabulary` says which ids begin, end and
  pad texts; its files are written by `hf_tokenizers.save_tokenizer`.
  """
  family = next(module for module, kind in FAMILIES.values() if isinstance(model, kind))
  hf = family.config_to_hf(model.config)
  if vocabulary is not None:
    hf |= token_ids(vocabulary, model.batch_layout)
  if model_type == "mt5" and family is hf_t5 and not model.config.scale_logits:  # theirs never scales
    hf |= {"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]}
  flat = unstack_layers(flatten(jax.tree.map(np.asarray, params)))
  tensors = export_tensors(family.rules(model.config), flat)
  if model.config.tie_embeddings and not hf.get("tie_word_embeddings", True):
    # Their config cannot say "tied, yet not scaled": the projection is written out.
    tensors["lm_head.weight"] = tensors["shared.weight"].copy()
  embedding = flat["token_embedder/embedding"]
  if family is hf_bert and not model.config.num_token_types:
    tensors["embeddings.token_type_embeddings.weight"] = np.zeros((1, embedding.shape[1]), embedding.dtype)
  prefix = "" if hf["architectures"] == ["BertModel"] else family.PREFIX
  named = {name if _is_head(name) else prefix + name: tensor for name, tensor in tensors.items()}
  safetensors_files.write(Path(folder), named)
  hf["dtype"] = str(embedding.dtype)
  (Path(folder) / "config.json").write_text(json.dumps(hf, indent=2, sort_keys=True) + "\n")


def read_config(folder: Path) -> dict:
  """config.json; or Google's bert_config.json, whose "gelu" is the tanh form."""
  if (folder / "config.json").is_file():
    hf = read_json(folder / "config.json")
  elif (folder / "bert_config.json").is_file():
    hf = read_json(folder / "bert_config.json") | {"model_type": "bert"}
    hf["hidden_act"] = "gelu_new" if hf.get("hidden_act") == "gelu" else hf.get("hidden_act")
  else:
    raise UserError(f"no config.json in {folder}", expected="a Hugging Face checkpoint folder")
  kind = hf.get("model_type", "")
  if not isinstance(kind, str) or kind not in FAMILIES:
    raise UserError(
      f"model_type {kind!r} in {folder}/config.json is not one of ours",
      known=", ".join(FAMILIES),
      nearest=nearest(str(kind), FAMILIES),
    )
  if (folder / _GENERATION).is_file():
    # transformers goes by this file where there is one.
    hf |= {k: v for k, v in read_json(folder / _GENERATION).items() if k == "decoder_start_token_id"}
  return hf


def _config(family: ModuleType, hf: Mapping, names: set[str], tied: bool, folder: Path) -> TransformerConfig:
  """The model that config.json describes: checked, and no deeper than the checkpoint, before its layers are listed."""
  try:
    config = family.config_from_hf(hf, names, tied)
  except KeyError as missing:
    raise UserError(f"{folder}/config.json has no {missing}", model_type=hf["model_type"]) from missing
  except (TypeError, ValueError, AttributeError, OverflowError) as error:
    raise UserError(f"{folder}/config.json holds a value of another type than its field", because=error) from error
  except UserError as error:
    lines = {name: text for name, text in error.lines.items() if name != "try"}
    raise UserError(f"{folder}/config.json: {error.what}", **lines) from None
  layers = config.num_encoder_layers + config.num_decoder_layers
  if layers > len(names):
    raise UserError(f"{folder}/config.json says {layers:,} layers, the checkpoint has {len(names):,} tensors")
  return config


def _tied(names: Mapping[str, str], read: Callable[[str], np.ndarray]) -> bool:
  """As transformers decides: tied unless both tensors are there and differ."""
  output = next((name for name in _OUTPUTS if name in names), None)
  embedding = next((name for name in _EMBEDDINGS if name in names), None)
  return output is None or embedding is None or np.array_equal(read(output), read(embedding))


def _is_head(name: str) -> bool:
  return name.startswith(("lm_head.", "cls."))
