"""Imports and exports Hugging Face checkpoints: folders with config.json and safetensors or pytorch_model.bin.

Every tensor keeps its dtype: `load` followed by `save` gives the same bits. Needs neither torch nor transformers.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from t5like.errors import UserError, nearest
from t5like.interop import decoders, encoders, hf_bart, hf_gpt, hf_t5, tensor_folders
from t5like.interop.hf_fields import guess_model_type, require_unmodified
from t5like.interop.hf_heads import HeadClass, find_head, head_from_hf, head_rules, head_to_hf, in_backbone
from t5like.interop.hf_tokenizers import padding_token, token_ids
from t5like.interop.layouts import (
  check_parameters,
  expected_shapes,
  flatten,
  stack_layers,
  unflatten,
  unstack_layers,
)
from t5like.interop.mapping import ImportReport, Rule, check_complete, export_tensors, import_tensors
from t5like.interop.sentence_modules import (
  encoder_folder,
  is_sentence_folder,
  read_sentence_folder,
  write_sentence_modules,
)
from t5like.interop.tensor_folders import TensorFolder, read_json
from t5like.models import BERT, ELECTRA, GPT, T5, SpanBERT, TransformerConfig
from t5like.models.heads import WithHead, attach_head
from t5like.vocabularies import Vocabulary

# model_type of config.json -> (the family's module, model class).
FAMILIES: dict[str, tuple[ModuleType, type]] = {
  **{kind: (hf_t5, T5) for kind in hf_t5.MODEL_TYPES},
  **{kind: (hf_bart, T5) for kind in hf_bart.MODEL_TYPES},
  **{kind: (family, getattr(family, "MODEL", BERT)) for kind, family in encoders.FAMILIES.items()},
  **{kind: (hf_gpt, GPT) for kind in hf_gpt.MODEL_TYPES},
  **{kind: (family, GPT) for kind, family in decoders.FAMILIES.items()},
}
# Names of output projections, and of the embeddings that they are tied to.
_OUTPUTS = (
  "lm_head.weight",
  "cls.predictions.decoder.weight",
  "lm_head.decoder.weight",
  "vocab_projector.weight",
  "predictions.decoder.weight",
  "generator_lm_head.weight",
  "lm_loss.weight",
)
_EMBEDDINGS = (
  "shared.weight",
  "wte.weight",
  "tokens_embed.weight",
  "embeddings.word_embeddings.weight",
  "embed_tokens.weight",
  "decoder.embed_tokens.weight",
  "word_embeddings.weight",
  "word_embedding.weight",
)
_GENERATION = "generation_config.json"
# Parts that a folder of sentence-transformers may have, unused.
_NOT_EMBEDDED = (
  r"pooler\.|cls\.|decoder\.|lm_head\.|predictions\.|sop_classifier\.|\w+_predictions\.|vocab_|generator_|lm_loss\."
)


@dataclasses.dataclass(frozen=True)
class Imported:
  model: T5 | BERT | GPT | WithHead
  params: dict  # nested; numpy arrays in the checkpoint's dtypes
  report: ImportReport
  model_type: str  # from config.json


def load(folder: Path | str, **changes: object) -> Imported:
  """Reads a checkpoint, or a folder of sentence-transformers, whose model has an EmbeddingHead.

  `changes` are fields of TransformerConfig (scan_layers=True, compute_dtype=...).
  """
  folder = Path(folder)
  sentence = read_sentence_folder(folder) if is_sentence_folder(folder) else None
  folder = sentence.transformer if sentence else folder
  hf, tensors = read_config(folder), TensorFolder(folder)
  if sentence is None and hf["model_type"] in hf_t5.MODEL_TYPES and _is_encoder(hf):
    sentence = encoder_folder(folder)
  family, model_class = FAMILIES[hf["model_type"]]
  head = None if sentence else find_head(hf)
  prefix = family.PREFIX if head is None else head.prefix
  names = {name.removeprefix(prefix): name for name in tensors.names()}

  def read(name):
    return tensors.read(names[name])

  for name in getattr(family, "ZEROS", ()):
    if name in names and not read(name).any():
      del names[name]
  wanted = [name for name in names if not any(re.fullmatch(pattern, name) for pattern in family.IGNORED)]
  config = _config(family, hf, set(names), _tied(names, read) if head is None else _ties(hf), folder)
  named = {"family": hf["model_type"]} if hf["model_type"] in encoders.FAMILIES | decoders.FAMILIES else {}
  model = model_class(config, **named)
  rules = family.rules(config)
  if head is not None or sentence:
    model = attach_head(model, sentence.head) if sentence else _attached(model, head, hf, folder)
    paths = expected_shapes(model)  # a head may not use all of the backbone: T5's decoder, BERT's other heads
    rules = [in_backbone(rule) for rule in rules]
    rules = [rule for rule in rules if paths.keys() >= set(rule.ours)]
    rules += head_rules(head, model.head) if head else []
  params, report = import_tensors(rules, wanted, read, str(folder))
  if sentence:
    params |= sentence.params
    report.unexpected[:] = [name for name in report.unexpected if not re.match(_NOT_EMBEDDED, name)]
  check_complete(report, str(folder))
  embedding = params[("backbone/" if isinstance(model, WithHead) else "") + "token_embedder/embedding"]
  model = model.clone(config=dataclasses.replace(model.config, **{"param_dtype": str(embedding.dtype)} | changes))
  if model.config.scan_layers:
    params = stack_layers(params)
  check_parameters(model, params, str(folder))
  return Imported(model, unflatten(params), report.renamed(names), hf["model_type"])


def save(
  folder: Path | str,
  model: T5 | BERT | GPT | WithHead,
  params: Mapping,
  model_type: str | None = None,
  vocabulary: Vocabulary | None = None,
  closed: bool = True,
) -> None:
  """Writes a folder for transformers' `from_pretrained`.

  Args:
    folder: the folder to write.
    model: the model.
    params: its parameters, scanned or not.
    model_type: "mt5" selects Hugging Face's mT5 instead of T5.
    vocabulary: sets the special token ids in config.json; `hf_tokenizers.save_tokenizer` writes its files.
    closed: whether the end-of-sequence ends the texts that a head reads: see `padding_token`.
  """
  model, params = _published_form(model, params)
  require_unmodified(model.config, type(model).__name__)
  has_head = isinstance(model, WithHead)
  backbone = model.backbone if has_head else model
  family, hf, head = *_family_and_fields(backbone), None
  if has_head:
    head, fields = (None, _sentence_fields(hf)) if model.head.form == "embedding" else head_to_hf(model)
    hf |= fields
    if family is hf_t5:  # without an output projection, the field has no other meaning
      hf["tie_word_embeddings"] = model.config.tie_embeddings
  if has_head and vocabulary is None:
    hf.setdefault("pad_token_id", model.config.padding_id)
  if vocabulary is not None:
    _check_padding(model.config, vocabulary)
    hf |= token_ids(vocabulary, backbone.batch_layout, model.config.start_id)
    if has_head and (pad := padding_token(vocabulary, model.config.vocab_size, closed)):
      hf["pad_token_id"] = pad[1]
  if model_type == "mt5" and family is hf_t5 and not model.config.scale_logits:  # Hugging Face's mT5 never scales
    hf |= {"model_type": "mt5", "architectures": [f"M{name}" for name in hf["architectures"]]}
  flat = unstack_layers(flatten(jax.tree.map(np.asarray, params)))
  rules = family.rules(model.config)
  if has_head:
    rules = [rule for rule in map(in_backbone, rules) if flat.keys() >= set(rule.ours)]
    rules += head_rules(head, model.head) if head else []
  if has_head and head is None:
    write_sentence_modules(Path(folder), model.head, model.config.embed_dim, flat)
    flat = {path: x for path, x in flat.items() if not path.startswith("head/")}
  tensors = export_tensors(rules, flat)
  if not has_head and model.config.tie_embeddings and not hf.get("tie_word_embeddings", True):
    # Hugging Face's config cannot express "tied but not scaled": write the projection.
    tensors["lm_head.weight"] = tensors["shared.weight"].copy()
  embedding = flat["backbone/token_embedder/embedding" if has_head else "token_embedder/embedding"]
  if not has_head:
    zeros = np.zeros((1, model.config.vocab_size), embedding.dtype)
    tensors |= {name: zeros for name in getattr(family, "ZEROS", ()) if name not in tensors}
  if hf.get("type_vocab_size", 0) > model.config.num_token_types:
    tensors["embeddings.token_type_embeddings.weight"] = np.zeros((1, embedding.shape[1]), embedding.dtype)
  rename = _full_names(family, hf, head)
  named = {rename(name): tensor for name, tensor in tensors.items()}
  tensor_folders.write(Path(folder), named)
  hf["dtype"] = str(embedding.dtype)
  (Path(folder) / "config.json").write_text(json.dumps(dict(sorted(hf.items())), indent=2) + "\n")


def _published_form(model: nn.Module, params: Any) -> tuple[nn.Module, Any]:
  """Returns what is published of a model that has more parts while it is pre-trained."""
  if isinstance(model, ELECTRA) and model.config.mlm_head:
    return model.discriminator(params)
  if isinstance(model, SpanBERT):
    plain = BERT(model.config, model.predicted_share, model.family)
    return plain, {name: part for name, part in params.items() if name != "boundary_head"}
  return model, params


def _check_padding(config: TransformerConfig, vocabulary: Vocabulary) -> None:
  """Raises UserError for a vocabulary with another padding id, from which Hugging Face's RoBERTa numbers positions."""
  is_encoder = config.num_decoder_layers == 0
  if is_encoder and config.position_offset and vocabulary.pad_id not in (None, config.padding_id):
    raise UserError(
      f"the vocabulary's padding id is {vocabulary.pad_id}, the model's {config.padding_id}",
      field=f"TransformerConfig.padding_id = {config.padding_id}",
      expected="a vocabulary with the same, such as roberta",
    )


def config_fields(model: T5 | BERT | GPT) -> dict:
  """Returns config.json of a model without a head; raises UserError if it has no class in transformers."""
  return _family_and_fields(model)[1]


def _family_and_fields(backbone: T5 | BERT | GPT) -> tuple[ModuleType, dict]:
  """Returns a model's family and its config.json."""
  family = (encoders.FAMILIES | decoders.FAMILIES).get(getattr(backbone, "family", ""))
  if family is not None:
    return family, family.config_to_hf(backbone.config, backbone.family)
  family = next(module for module, kind in FAMILIES.values() if isinstance(backbone, kind))
  if family is hf_t5 and backbone.config.positions_per_stack:
    family = hf_bart
  return family, family.config_to_hf(backbone.config)


def _full_names(family: ModuleType, hf: Mapping, head: HeadClass | None) -> Callable[[str], str]:
  """Returns a function from the name of a tensor in our rules to that in the class of config.json."""
  (name,) = hf["architectures"]
  if name.endswith("Model") and not name.endswith("LMHeadModel"):
    return lambda tensor: tensor
  prefix = family.PREFIX if head is None else head.prefix
  outside = family.OUTSIDE if head is None else tuple(f"{layer}." for layer in head.layers)
  return lambda tensor: tensor if tensor.startswith(outside) else prefix + tensor


def _is_encoder(hf: Mapping) -> bool:
  """Whether a folder holds an encoder alone, as T5EncoderModel does."""
  names = hf.get("architectures")
  return isinstance(names, list) and any(str(name).endswith("EncoderModel") for name in names)


def _sentence_fields(hf: Mapping) -> dict:
  """Returns the fields of config.json for the transformer of sentence-transformers."""
  if hf["model_type"] in hf_t5.MODEL_TYPES:
    return {"architectures": ["T5EncoderModel"], "is_encoder_decoder": False}
  if hf["model_type"] in hf_bart.MODEL_TYPES:
    raise UserError("sentence-transformers cannot run BART's encoder alone", try_="t5like infer --embed, or an encoder")
  name = {"gpt2": "GPT2", "openai-gpt": "OpenAIGPT"} | encoders.CLASS_NAMES | decoders.CLASS_NAMES
  return {"architectures": [f"{name[hf['model_type']]}Model"]}


def tensor_rules(model: T5 | BERT | GPT | WithHead) -> list[Rule]:
  """Returns the rules for all tensors of a model, under their names in Hugging Face's class; one without copies."""
  has_head = isinstance(model, WithHead)
  backbone = model.backbone if has_head else model
  (family, hf), head = _family_and_fields(backbone), None
  rules = family.rules(model.config)
  if has_head:
    head, fields = head_to_hf(model)
    hf |= fields
    separate = model.clone(config=dataclasses.replace(model.config, scan_layers=False), tuning=None)
    paths = expected_shapes(separate).keys()
    rules = [rule for rule in map(in_backbone, rules) if paths >= set(rule.ours)] + head_rules(head, model.head)
  rename = _full_names(family, hf, head)
  return [dataclasses.replace(rule, theirs=rename(rule.theirs)) for rule in rules]


def read_config(folder: Path) -> dict:
  """Reads config.json, or Google's bert_config.json, whose "gelu" is the tanh form."""
  if (folder / "config.json").is_file():
    hf = read_json(folder / "config.json")
  elif (folder / "bert_config.json").is_file():
    hf = read_json(folder / "bert_config.json") | {"model_type": "bert"}
    hf["hidden_act"] = "gelu_new" if hf.get("hidden_act") == "gelu" else hf.get("hidden_act")
  else:
    raise UserError(f"no config.json in {folder}", expected="a Hugging Face checkpoint folder")
  kind = hf["model_type"] = hf.get("model_type") or guess_model_type(hf)
  if not isinstance(kind, str) or kind not in FAMILIES:
    raise UserError(
      f"unsupported model_type {kind!r} in {folder}/config.json",
      architectures=str(hf.get("architectures", ""))[:100],
      known=", ".join(FAMILIES),
      nearest=nearest(str(kind), FAMILIES),
    )
  if quantized := hf.get("quantization_config"):
    raise UserError(
      f"the weights in {folder} are quantized", quantization_config=str(quantized)[:200],
      expected="weights in float32, bfloat16 or float16",
    )  # fmt: skip
  if (folder / _GENERATION).is_file():
    # In transformers, this file takes precedence.
    hf |= {k: v for k, v in read_json(folder / _GENERATION).items() if k == "decoder_start_token_id"}
  return hf


def _config(family: ModuleType, hf: Mapping, names: set[str], tied: bool, folder: Path) -> TransformerConfig:
  """Returns the config in config.json; checks that it has no more layers than the checkpoint, before listing them."""
  try:
    config = family.config_from_hf(hf, names, tied)
  except KeyError as missing:
    raise UserError(f"{folder}/config.json has no {missing}", model_type=hf["model_type"]) from missing
  except (TypeError, ValueError, AttributeError, OverflowError) as error:
    raise UserError(f"{folder}/config.json has a value of the wrong type", because=error) from error
  except UserError as error:
    lines = {name: text for name, text in error.lines.items() if name != "try"}
    raise UserError(f"{folder}/config.json: {error.what}", **lines) from None
  layers = sum(config.stored_layers.values())
  if layers > len(names):
    raise UserError(f"{folder}/config.json has {layers:,} layers, but the checkpoint only {len(names):,} tensors")
  return config


def _tied(names: Mapping[str, str], read: Callable[[str], np.ndarray]) -> bool:
  """Whether embeddings are tied, as in transformers: unless both tensors exist and differ."""
  output = next((name for name in _OUTPUTS if name in names), None)
  embedding = next((name for name in _EMBEDDINGS if name in names), None)
  return output is None or embedding is None or np.array_equal(read(output), read(embedding))


def _ties(hf: Mapping) -> bool:
  """Whether the output projection, which a model with a head does not have, would be tied."""
  return hf["model_type"] in encoders.FAMILIES or hf.get("tie_word_embeddings") is not False


def _attached(backbone: T5 | BERT | GPT, found: HeadClass, hf: Mapping, folder: Path) -> WithHead:
  try:
    return attach_head(backbone, head_from_hf(found, hf))
  except UserError as error:
    raise UserError(f"{folder}/config.json: {error.what}", **error.lines) from None
