"""Folders of sentence-transformers: a transformer, its pooling, a dense layer and normalization.

    modules.json                       the modules in order: name, folder and class of each
    1_Pooling/config.json              pooling_mode, or a flag for each mode in older folders
    2_Dense/config.json, weights       in_features, out_features, bias, activation_function
    3_Normalize/
    sentence_bert_config.json          max_seq_length, do_lower_case; newer folders: model_max_length of the tokenizer
    config_sentence_transformers.json  prompts, default_prompt_name

The transformer itself is a Hugging Face folder: huggingface.py reads and writes it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.console import warn
from t5like.errors import UserError, is_number, nearest
from t5like.files import storage
from t5like.interop import tensor_folders
from t5like.interop.mapping import check_tensor
from t5like.interop.tensor_folders import TensorFolder, read_json
from t5like.models.heads import EmbeddingHead
from t5like.models.heads.embedding import IDENTITY
from t5like.vocabularies.tokenizer_json import read_tokenizer

MODULES = "modules.json"
_PROMPTS, _TOKENIZER = "config_sentence_transformers.json", "tokenizer.json"
_SETTINGS = "sentence_bert_config.json"
_OLD_NAMES = tuple(  # of the same file, in the order in which sentence-transformers looks for them
  f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# The only values that a field of a file of settings may have here.
_OF_TRANSFORMER = {
  "transformer_task": "feature-extraction", "module_output_name": "token_embeddings", "processing_kwargs": {},
  "tokenizer_args": {}, "processor_kwargs": {}, "config_args": {}, "config_kwargs": {}, "query_length": None,
  "document_length": None, "query_expansion": None,
}  # fmt: skip
_OF_SENTENCES = {
  "module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding", "use_residual": False,
}  # fmt: skip
_OUTPUT = {"method": "forward", "method_output_name": "last_hidden_state"}
_POOLINGS = {
  "cls": "cls", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "mean_sqrt_length",
  "weightedmean": "weighted_mean", "lasttoken": "last",
}  # fmt: skip
# Flags of older folders, in the order in which their vectors are joined.
_FLAGS = {
  "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
  "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
  "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
_ACTIVATIONS = {
  "torch.nn.modules.activation.Tanh": "tanh", "torch.nn.modules.linear.Identity": IDENTITY,
  "torch.nn.modules.activation.ReLU": "relu", "torch.nn.modules.activation.GELU": "gelu_erf",
  "torch.nn.modules.activation.SiLU": "silu",
}  # fmt: skip
_NO_LIMIT = 1_000_000  # model_max_length of tokenizers without one is larger


@dataclasses.dataclass(frozen=True)
class SentenceFolder:
  """A folder of sentence-transformers."""

  transformer: Path  # the Hugging Face folder in it
  head: EmbeddingHead
  params: dict[str, np.ndarray]  # of the head, by path: head/dense/kernel


def is_sentence_folder(folder: Path) -> bool:
  return (folder / MODULES).is_file()


def transformer_folder(folder: Path) -> Path:
  """Returns the folder of the transformer within one of sentence-transformers; any other folder as it is."""
  return folder / _modules(folder)[0][1] if is_sentence_folder(folder) else folder


def read_sentence_folder(folder: Path) -> SentenceFolder:
  """Reads everything but the transformer. Raises UserError for modules that an EmbeddingHead does not have."""
  (kind, place), *modules = [module for module in _modules(folder) if module[0] != "Dropout"]  # only in training
  kinds = [kind for kind, _ in modules]
  if kind != "Transformer" or kinds not in (
    ["Pooling"], ["Pooling", "Dense"], ["Pooling", "Normalize"], ["Pooling", "Dense", "Normalize"]
  ):  # fmt: skip
    raise UserError(
      f"unsupported modules in {folder / MODULES}: {', '.join([kind, *kinds])}",
      expected="Transformer, Pooling, then optionally Dense and Normalize",
    )
  for _, own in modules[1:]:
    _check_fields(folder / own / "config.json", _OF_SENTENCES)
  settings = {"pooling": _pooling(folder / modules[0][1]), "normalize": "Normalize" in kinds}
  params = {}
  if "Dense" in kinds:
    dense, params = _dense(folder / modules[1][1])
    settings |= dense
  return SentenceFolder(folder / place, EmbeddingHead(**settings | _text_settings(folder, folder / place)), params)


def encoder_folder(folder: Path) -> SentenceFolder:
  """Reads the folder of an encoder alone as sentence-transformers does: pooled by the mean."""
  return SentenceFolder(folder, EmbeddingHead(**_text_settings(folder, folder)), {})


def _modules(folder: Path) -> list[tuple[str, str]]:
  """Returns the class and the folder of each module."""
  try:
    found = storage.read_json(folder / MODULES, list)
    modules = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in found]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(f"{folder / MODULES} is invalid", because=error, expected="a list of modules") from None
  for _, place in modules:
    if place and not storage.is_plain_name(place):
      raise UserError(f"{folder / MODULES} refers to a module outside of its folder", found=repr(place)[:100])
  if not modules:
    raise UserError(f"{folder / MODULES} has no modules")
  return modules


def _pooling(folder: Path) -> str:
  config = read_json(folder / "config.json")
  if config.get("include_prompt") is False:
    raise UserError(f"{folder} leaves prompts out of the pooling, which is not supported", field="include_prompt")
  modes = config.get("pooling_mode") or [mode for flag, mode in _FLAGS.items() if config.get(flag)]
  modes = [modes] if isinstance(modes, str) else modes
  if not isinstance(modes, list) or not modes or not all(mode in _POOLINGS for mode in modes):
    raise UserError(f"unsupported pooling in {folder}/config.json: {str(modes)[:60]}", known=", ".join(_POOLINGS))
  return "+".join(_POOLINGS[mode] for mode in modes)


def _dense(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  config = read_json(folder / "config.json")
  name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
  if name not in _ACTIVATIONS:
    raise UserError(
      f"unsupported activation in {folder}/config.json: {str(name)[:60]}",
      known=", ".join(_ACTIVATIONS),
      nearest=nearest(str(name), _ACTIVATIONS),
    )
  tensors, bias = TensorFolder(folder), config.get("bias", True)
  params = {"head/dense/kernel": np.ascontiguousarray(tensors.read("linear.weight").T)}
  if bias:
    params["head/dense/bias"] = tensors.read("linear.bias")
  for path, tensor in params.items():
    check_tensor(path, tensor, str(folder))
  width = params["head/dense/kernel"].shape[-1]
  return {"dense_dim": width, "dense_activation": _ACTIVATIONS[name], "dense_bias": bool(bias)}, params


def _check_fields(path: Path, expected: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the settings in a file, if it exists; raises UserError for one that would be computed differently."""
  found = _json_if_there(path)
  for name, value in expected.items():
    if found.get(name, value) not in (value, None):
      raise UserError(f"{path}: {name} = {str(found[name])[:80]} is not supported", expected=f"{name} = {value}")
  return found


def _text_settings(folder: Path, transformer: Path) -> dict[str, Any]:
  """Returns the facts about texts: their length, lower case, a prompt, special tokens."""
  file = next((transformer / name for name in (_SETTINGS, *_OLD_NAMES) if (transformer / name).is_file()), None)
  own = _check_fields(file, _OF_TRANSFORMER) if file else {}
  output = (own.get("modality_config") or {}).get("text") or _OUTPUT
  if {name: output.get(name, value) for name, value in _OUTPUT.items()} != _OUTPUT:
    raise UserError(f"{file}: modality_config = {str(output)[:80]} is not supported", expected=str(_OUTPUT))
  tokenizer = _json_if_there(transformer / "tokenizer_config.json")
  if tokenizer.get("truncation_side", "right") != "right":
    warn(f"{transformer} keeps the end of a text that is too long (truncation_side); here its beginning is kept")
  length = own.get("max_seq_length") or tokenizer.get("model_max_length")
  if length is not None and (not is_number(length) or length < 1):
    raise UserError(f"invalid maximum length in {transformer}: {str(length)[:60]}", expected="a number of tokens")
  config = _json_if_there(folder / _PROMPTS)
  prompts, chosen = config.get("prompts") or {}, config.get("default_prompt_name")
  if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
    raise UserError(f"invalid prompts in {folder / _PROMPTS}", expected="texts by name")
  if config.get("truncate_dim") is not None:
    raise UserError(f"{folder / _PROMPTS} cuts off embeddings, which is not supported", field="truncate_dim")
  if chosen is not None and not isinstance(prompts.get(chosen), str):
    raise UserError(f"{folder / _PROMPTS} has no prompt {chosen!r}", known=", ".join(prompts))
  return {
    "length": int(length) if length and length < _NO_LIMIT else None,
    "lower_case": bool(own.get("do_lower_case", False)),
    "prompt": prompts[chosen] if chosen else "",
    "prompts": tuple(prompts.items()),
    "similarity": str(config.get("similarity_fn_name") or "cosine"),
    "around": _around(transformer),
  }


def _around(transformer: Path) -> tuple[int | None, int | None] | None:
  """Returns the ids that the tokenizer adds before and after a text (a GPT's usually adds none); None: unknown."""
  path = transformer / _TOKENIZER
  if not path.is_file():
    is_gpt = read_json(transformer / "config.json").get("model_type") in ("gpt2", "openai-gpt")
    return (None, None) if is_gpt else None
  full = read_tokenizer(path).encode("a")
  mask = full.special_tokens_mask
  start = next((n for n, special in enumerate(mask) if not special), len(mask))
  before, after = (
    full.ids[:start],
    [token for token, special in zip(full.ids[start:], mask[start:], strict=True) if special],
  )
  if len(before) > 1 or len(after) > 1:
    raise UserError(f"{path} adds several special tokens on one side of a text", before=before, after=after)
  return (before or [None])[0], (after or [None])[0]


def _json_if_there(path: Path) -> Mapping[str, Any]:
  return read_json(path) if path.is_file() else {}


def write_sentence_modules(folder: Path, head: EmbeddingHead, embed_dim: int, params: Mapping[str, np.ndarray]) -> None:
  """Writes everything but the transformer, in the form that all versions of sentence-transformers read.

  params  of the head; the layer that only training uses, and the classifier of the softmax loss, are left out.
  """
  by_ours = {ours: theirs for theirs, ours in _POOLINGS.items()}
  modes = [by_ours[part] for part in head.pooling.split("+")]
  pooling = {"word_embedding_dimension": embed_dim} | {flag: mode in modes for flag, mode in _FLAGS.items()}
  if modes != [mode for mode in _FLAGS.values() if mode in modes]:
    raise UserError(
      f"older folders of sentence-transformers join poolings in another order than {head.pooling!r}",
      expected="+".join(_POOLINGS[mode] for mode in _FLAGS.values() if mode in modes),
    )
  names = ["Transformer", "Pooling", *(["Dense"] if head.dense_dim else []), *(["Normalize"] if head.normalize else [])]
  places = ["", *(f"{number}_{name}" for number, name in enumerate(names) if number)]
  for place in places[1:]:
    (folder / place).mkdir(parents=True, exist_ok=True)
  _write_json(folder / "1_Pooling" / "config.json", pooling)
  if head.dense_dim:
    _write_dense(folder / "2_Dense", head, params)
  modules = [
    {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{name}"}
    for number, (name, place) in enumerate(zip(names, places, strict=True))
  ]
  _write_json(folder / MODULES, modules)
  _write_json(folder / _SETTINGS, {"max_seq_length": head.length, "do_lower_case": head.lower_case})
  prompts = dict(head.prompts)
  chosen = next((name for name, prompt in prompts.items() if prompt == head.prompt), "default") if head.prompt else None
  prompts |= {chosen: head.prompt} if chosen else {}
  _write_json(
    folder / _PROMPTS,
    {"__version__": {}, "prompts": prompts, "default_prompt_name": chosen, "similarity_fn_name": head.similarity},
  )


def _write_dense(folder: Path, head: EmbeddingHead, params: Mapping[str, np.ndarray]) -> None:
  by_ours = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
  if head.dense_activation not in by_ours:
    raise UserError(
      f"sentence-transformers has no activation {head.dense_activation!r}", known=", ".join(by_ours)
    )  # fmt: skip
  kernel = params["head/dense/kernel"]
  config = {"in_features": kernel.shape[0], "out_features": kernel.shape[1], "bias": head.dense_bias}
  _write_json(folder / "config.json", config | {"activation_function": by_ours[head.dense_activation]})
  tensors = {"linear.weight": np.ascontiguousarray(kernel.T)}
  if head.dense_bias:
    tensors["linear.bias"] = params["head/dense/bias"]
  tensor_folders.write(folder, tensors)


def _write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
  path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
