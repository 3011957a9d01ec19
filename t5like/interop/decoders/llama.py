"""Hugging Face's Llama (1 to 3.2), Mistral and OLMo-2: RMS norms, rotary positions, gated SiLU, grouped heads.

OLMo-2 normalizes queries, keys and the results of sublayers instead of their inputs; Mistral has a window.
"""

import dataclasses
from collections.abc import Mapping

from t5like.errors import UserError
from t5like.interop.decoders.names import Names, check_known, check_output
from t5like.interop.hf_fields import check_values, from_hf_activation, require_fields, to_hf_activation
from t5like.interop.mapping import Rule
from t5like.models import TransformerConfig

CLASSES = {"llama": "Llama", "mistral": "Mistral", "olmo2": "Olmo2"}
PREFIX, OUTSIDE = "model.", ("lm_head.",)
IGNORED = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)  # a buffer in older files
_LAYER = {
  "attention/query": "self_attn.q_proj",
  "attention/key": "self_attn.k_proj",
  "attention/value": "self_attn.v_proj",
  "attention/out": "self_attn.o_proj",
  "mlp/wi_0": "mlp.gate_proj",
  "mlp/wi_1": "mlp.up_proj",
  "mlp/wo": "mlp.down_proj",
}
LLAMA = Names(
  layer="layers.{}",
  in_layer=_LAYER | {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
  parts={"decoder/final_norm": "norm"},
  tensors={"token_embedder/embedding": "embed_tokens.weight"},
)
OLMO2 = dataclasses.replace(
  LLAMA,
  in_layer=_LAYER
  | {"attention_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"}
  | {"attention/query_norm": "self_attn.q_norm", "attention/key_norm": "self_attn.k_norm"},
)
_FIELDS = (
  "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
  "hidden_act", "rms_norm_eps", "max_position_embeddings", "head_dim", "attention_bias", "mlp_bias",
  "attention_dropout", "sliding_window", "rope_theta", "rope_scaling", "rope_parameters",
)  # fmt: skip
_SCALINGS = ("default", "linear", "llama3")
# Fields of a rope dictionary and ours.
_LLAMA3 = {
  "low_freq_factor": "rotary_low_factor",
  "high_freq_factor": "rotary_high_factor",
  "original_max_position_embeddings": "rotary_original_length",
}


def rules(config: TransformerConfig) -> list[Rule]:
  return (OLMO2 if config.norm_position == "branch" else LLAMA).rules(config)


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  kind = hf["model_type"]
  is_olmo, family = kind == "olmo2", CLASSES[kind]
  check_known(hf, family, _FIELDS if kind == "mistral" else [name for name in _FIELDS if name != "sliding_window"])
  if kind != "llama":
    check_values(hf, family, mlp_bias=False, attention_bias=False)
  elif bool(hf.get("attention_bias")) != bool(hf.get("mlp_bias")):
    given = f"attention_bias = {hf.get('attention_bias')}, mlp_bias = {hf.get('mlp_bias')}"
    raise UserError("Llama with biases in only one of attention and MLP is not supported", given=given)
  check_output(hf, names, tied=False)
  return TransformerConfig(
    vocab_size=hf["vocab_size"],
    embed_dim=hf["hidden_size"],
    mlp_dim=hf["intermediate_size"],
    num_heads=hf["num_attention_heads"],
    num_kv_heads=_kv_heads(hf, 8 if kind == "mistral" else None),
    head_dim=hf.get("head_dim"),
    num_decoder_layers=hf["num_hidden_layers"],
    activation=from_hf_activation(hf.get("hidden_act", "silu")),
    gated_mlp=True,
    norm="rms",
    norm_epsilon=hf.get("rms_norm_eps", 1e-5 if is_olmo else 1e-6),
    norm_position="branch" if is_olmo else "pre",
    qk_norm=is_olmo,
    use_bias=bool(hf.get("attention_bias")),
    scale_attention=True,
    attention_window=hf.get("sliding_window", 4096) if kind == "mistral" else None,
    positions="rotary",
    max_positions=hf["max_position_embeddings"],
    **_rope_from_hf(hf),
    tie_embeddings=tied,
    scale_logits=False,
    dropout_rate=0.0,
    attention_dropout_rate=hf.get("attention_dropout") or 0.0,
    final_dropout=False,
    initializer="normal",
    initializer_stddev=hf.get("initializer_range", 0.02),
  )


def _kv_heads(hf: Mapping, default: int | None) -> int | None:
  """Returns the heads of keys, or None if every head has its own."""
  count = hf.get("num_key_value_heads", default)
  return None if count == hf["num_attention_heads"] else count


def _rope_from_hf(hf: Mapping) -> dict:
  """Returns our fields of rotary positions: from rope_parameters (transformers 5), or rope_theta and rope_scaling.

  If both are present, transformers reads rope_scaling only.
  """
  rope = dict(hf.get("rope_scaling") or hf.get("rope_parameters") or {})
  base = float(rope.pop("rope_theta", None) or hf.get("rope_theta") or 10_000.0)
  kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
  rope.pop("type", None)
  if kind not in _SCALINGS:
    raise UserError(f"rotary positions of type {kind!r} are not supported", known=", ".join(_SCALINGS))
  if kind == "default":
    return {"rotary_base": base}
  fields = {"rotary_base": base, "rotary_scaling": kind, "rotary_factor": float(rope.pop("factor"))}
  if kind == "llama3":
    fields |= {ours: type(rope[theirs])(rope.pop(theirs)) for theirs, ours in _LLAMA3.items()}
  check_known(rope, f"rotary positions of type {kind!r}", _LLAMA3)
  return fields


def _rope_to_hf(config: TransformerConfig) -> dict:
  """Returns rope_theta and rope_scaling, which all versions of transformers read."""
  scaling = None
  if config.rotary_scaling != "default":
    scaling = {"rope_type": config.rotary_scaling, "factor": config.rotary_factor}
  if config.rotary_scaling == "llama3":
    scaling |= {theirs: getattr(config, ours) for theirs, ours in _LLAMA3.items()}
  return {"rope_theta": config.rotary_base, "rope_scaling": scaling}


def config_to_hf(config: TransformerConfig, model_type: str = "llama") -> dict:
  is_olmo, family = model_type == "olmo2", CLASSES[model_type]
  require_fields(
    config, family, norm="rms", norm_position="branch" if is_olmo else "pre", qk_norm=is_olmo, positions="rotary",
    gated_mlp=True, scale_attention=True, scale_embeddings=False, scale_logits=False, embedding_norm=False,
    embedding_dim=None, use_bias=config.use_bias and model_type == "llama", use_key_bias=True,
    prefix_lm=False,
  )  # fmt: skip
  if model_type != "mistral":
    require_fields(config, family, attention_window=None)
  if config.num_heads * config.head_dim != config.embed_dim and is_olmo:
    require_fields(config, family, head_dim=config.embed_dim // config.num_heads)
  hf = {
    "architectures": [f"{family}ForCausalLM"],
    "model_type": model_type,
    "vocab_size": config.vocab_size,
    "hidden_size": config.embed_dim,
    "intermediate_size": config.mlp_dim,
    "num_attention_heads": config.num_heads,
    "num_key_value_heads": config.kv_heads,
    "num_hidden_layers": config.num_decoder_layers,
    "hidden_act": to_hf_activation(config.activation),
    "rms_norm_eps": config.norm_epsilon,
    "max_position_embeddings": config.max_positions or 2048,
    "attention_dropout": config.attention_dropout_rate or 0.0,
    "initializer_range": config.initializer_stddev,
    "tie_word_embeddings": config.tie_embeddings,
    **_rope_to_hf(config),
  }
  if not is_olmo:
    hf["head_dim"] = config.head_dim
  if model_type == "llama":
    hf |= {"attention_bias": config.use_bias, "mlp_bias": config.use_bias}
  if model_type == "mistral":
    hf["sliding_window"] = config.attention_window
  return hf
