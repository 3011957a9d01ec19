"""Shared by all model families: activation names, and checks of config.json fields."""

import dataclasses
from collections.abc import Collection, Mapping

from t5like.errors import UserError, nearest
from t5like.models import TransformerConfig
from t5like.models.config import MODIFICATIONS

_OURS = {
  "relu": "relu",
  **dict.fromkeys(("gelu", "gelu_python"), "gelu_erf"),
  **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu"),
  **dict.fromkeys(("silu", "swish"), "silu"),
}
_THEIRS = {"relu": "relu", "gelu_erf": "gelu", "gelu": "gelu_new", "silu": "silu"}


# The names of classes in `architectures` start with one of these; the longer ones first.
_CLASSES = {"OpenAIGPT": "openai-gpt", "GPT2": "gpt2", "UMT5": "umt5", "MT5": "mt5", "T5": "t5", "Bert": "bert",
  "XLMRoberta": "xlm-roberta", "Roberta": "roberta", "DistilBert": "distilbert", "Albert": "albert",
  "MBart": "mbart", "Bart": "bart", "Electra": "electra", "DebertaV2": "deberta-v2", "Deberta": "deberta",
  "Llama": "llama", "LLaMA": "llama", "Mistral": "mistral", "Olmo2": "olmo2", "OPT": "opt", "Bloom": "bloom",
  "XLNet": "xlnet",
}  # fmt: skip
# Fields that only this family has.
_TYPICAL_FIELDS = {
  "t5": ("d_model", "d_kv", "d_ff"),
  "bart": ("d_model", "encoder_ffn_dim", "decoder_ffn_dim"),
  "openai-gpt": ("n_embd", "n_positions", "afn"),
  "gpt2": ("n_embd", "n_positions", "n_layer"),
  "xlnet": ("d_model", "d_inner", "n_head"),
  "distilbert": ("dim", "hidden_dim", "n_heads"),
  "electra": ("hidden_size", "embedding_size", "summary_type"),
  "albert": ("hidden_size", "num_hidden_groups", "embedding_size"),
  "bert": ("hidden_size", "intermediate_size", "type_vocab_size"),
}


def guess_model_type(hf: Mapping) -> str:
  """Returns the model_type of a config.json from before that field, or '' if it is not clear."""
  classes = hf.get("architectures")
  if isinstance(classes, list) and classes:
    return next((kind for start, kind in _CLASSES.items() if str(classes[0]).startswith(start)), "")
  if hf.get("type_vocab_size") == 1 and "hidden_size" in hf:  # BERT's fields, but positions are numbered from 2
    return "roberta"
  return next((kind for kind, fields in _TYPICAL_FIELDS.items() if all(field in hf for field in fields)), "")


def from_hf_activation(name: str) -> str:
  if name not in _OURS:
    raise UserError(f"unknown activation {name!r} in config.json", known=", ".join(_OURS), nearest=nearest(name, _OURS))
  return _OURS[name]


def to_hf_activation(name: str) -> str:
  if name not in _THEIRS:
    raise UserError(f"no Hugging Face model has activation = {name!r}", known=", ".join(_THEIRS))
  return _THEIRS[name]


def check_values(hf: Mapping, family: str, **needed: object) -> None:
  """Raises UserError unless fields of config.json, where given, have the only value that we compute."""
  for field, value in needed.items():
    if hf.get(field, value) != value:
      raise UserError(
        f"{family} with {field} = {hf[field]!r} is not supported", expected=f"{field} = {value!r} in config.json"
      )


def require_output(hf: Mapping, names: Collection[str], output: str) -> None:
  """Raises UserError if an untied output projection is missing: it would be initialized randomly."""
  if hf.get("tie_word_embeddings") is False and output not in names:
    raise UserError(
      f"the checkpoint has no {output}, but its output projection is not tied",
      field="tie_word_embeddings = false in config.json",
      try_="a checkpoint with that tensor, or tie_word_embeddings = true if it is tied to the embedding",
    )


def require_unmodified(config: TransformerConfig, family: str) -> None:
  """Raises UserError if the config has a switch that no published model has, or none with a decoder."""
  defaults = {field.name: field.default for field in dataclasses.fields(TransformerConfig)}
  shared = ("layer_groups",) if config.num_decoder_layers else ()
  require_fields(config, family, **{field: defaults[field] for field in (*MODIFICATIONS, *shared)})


def require_fields(config: TransformerConfig, family: str, **needed: object) -> None:
  """Raises UserError if Hugging Face's implementation of the family cannot run the model."""
  for field, value in needed.items():
    given = getattr(config, field)
    if given != value:
      raise UserError(f"Hugging Face's {family} does not support {field} = {given!r}", expected=f"{field} = {value!r}")
