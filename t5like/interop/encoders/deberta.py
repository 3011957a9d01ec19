"""Hugging Face's DeBERTa (model_type deberta) and its versions 2 and 3 (deberta-v2).

Version 1 has one tensor for query, key and value, ordered by head, and no bias of keys. The head for masked tokens has
two sets of names, of which we write the first.
"""

from collections.abc import Mapping

from t5like.errors import UserError
from t5like.interop.encoders.bert import LAYER
from t5like.interop.encoders.names import POSITION_IDS, Names, check_tied, encoder_config, encoder_fields
from t5like.interop.hf_fields import check_values
from t5like.interop.mapping import Rule
from t5like.models import TransformerConfig

CLASSES = {"deberta": "Deberta", "deberta-v2": "DebertaV2"}
PREFIX, OUTSIDE = "deberta.", ("cls.",)
IGNORED = (POSITION_IDS,)
_PROJECTIONS = ("attention/query", "attention/key", "attention/value")
NAMES = Names(
  layer="encoder.layer.{}",
  in_layer={ours: theirs for ours, theirs in LAYER.items() if ours not in _PROJECTIONS},
  parts={
    "token_embedder/norm": "embeddings.LayerNorm",
    "encoder/relative_embedding/norm": "encoder.LayerNorm",
    "encoder/convolution/norm": "encoder.conv.LayerNorm",
    "mlm_head/transform": "cls.predictions.transform.dense",
    "mlm_head/norm": "cls.predictions.transform.LayerNorm",
  },
  tensors={
    "token_embedder/embedding": "embeddings.word_embeddings.weight",
    "encoder/relative_embedding/embedding": "encoder.rel_embeddings.weight",
    "mlm_head/bias": "cls.predictions.bias",
  },
  copies={
    "token_embedder/embedding": ("cls.predictions.decoder.weight",),
    "mlm_head/transform": ("lm_predictions.lm_head.dense",),
    "mlm_head/norm": ("lm_predictions.lm_head.LayerNorm",),
    "mlm_head/bias": ("cls.predictions.decoder.bias", "lm_predictions.lm_head.bias"),
  },
)
_HEAD_NAMES = ("cls.predictions.transform.dense.weight", "lm_predictions.lm_head.dense.weight")
# Fields of config.json with the only values that published models have.
_EXPECTED = {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0, "talking_head": False}


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  mlm_head = any(name in names for name in _HEAD_NAMES)
  if mlm_head or not tied:
    check_tied(hf, names, tied, "cls.predictions.decoder.weight")
  _check_supported(hf)
  longest = hf.get("max_relative_positions", -1)
  longest = longest if longest > 0 else hf["max_position_embeddings"]
  is_first = hf["model_type"] == "deberta"
  buckets = -1 if is_first else hf.get("position_buckets", -1)
  if buckets > 0 and not 2 <= buckets < longest:
    raise UserError(
      f"DeBERTa with position_buckets = {buckets} is not supported",
      expected=f"from 2 to less than the largest distance, {longest:,}; or -1",
    )
  return encoder_config(
    {"layer_norm_eps": 1e-7, "type_vocab_size": 0} | dict(hf),
    positions="disentangled",
    relative_buckets=buckets if buckets > 0 else longest,
    relative_max_distance=longest,
    relative_norm=not is_first and "layer_norm" in hf.get("norm_rel_ebd", "none"),
    share_position_projections=not is_first and bool(hf.get("share_att_key")),
    use_key_bias=not is_first,
    convolution_width=0 if is_first else max(hf.get("conv_kernel_size", 0), 0),
    mlm_head=mlm_head,
  )


def _check_supported(hf: Mapping) -> None:
  kinds = hf.get("pos_att_type") or ()
  kinds = kinds.split("|") if isinstance(kinds, str) else kinds
  found = dict(hf) | {"pos_att_type": sorted(kinds)}
  expected = _EXPECTED | {"pos_att_type": ["c2p", "p2c"], "conv_groups": 1}
  if hf.get("conv_kernel_size", 0) > 0:
    found["conv_act"], expected["conv_act"] = hf.get("conv_act", "tanh"), hf.get("hidden_act", "gelu")
  if hf.get("embedding_size", hf["hidden_size"]) != hf["hidden_size"]:
    raise UserError("DeBERTa with a projection of embeddings is not supported", embedding_size=hf["embedding_size"])
  check_values(found, "DeBERTa", **expected)


def config_to_hf(config: TransformerConfig, model_type: str = "deberta-v2") -> dict:
  is_first = model_type == "deberta"
  needed = dict(positions="disentangled", pooler=False, nsp_head=False, num_token_types=0, use_key_bias=not is_first)
  needed["convolution_width"] = 0 if is_first else config.convolution_width
  if is_first:
    needed |= dict(relative_norm=False, share_position_projections=False)
    needed["relative_buckets"] = config.relative_max_distance
  fields = encoder_fields(config, "DeBERTa", **needed) | {
    "model_type": model_type,
    "architectures": [CLASSES[model_type] + ("ForMaskedLM" if config.mlm_head else "Model")],
    "max_position_embeddings": config.max_positions or config.relative_max_distance,
    "max_relative_positions": config.relative_max_distance,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
    "type_vocab_size": 0,
  }
  if not is_first:
    fields |= {
      "position_buckets": config.relative_buckets if config.relative_buckets < config.relative_max_distance else -1,
      "norm_rel_ebd": "layer_norm" if config.relative_norm else "none",
      "share_att_key": config.share_position_projections,
    }
  if config.convolution_width:
    fields |= {"conv_kernel_size": config.convolution_width, "conv_act": fields["hidden_act"]}
  return fields


def rules(config: TransformerConfig) -> list[Rule]:
  found = NAMES.rules(config)
  if config.convolution_width:
    found.append(Rule("encoder.conv.conv.weight", ("encoder/convolution/kernel",), transpose=True))
    found.append(Rule("encoder.conv.conv.bias", ("encoder/convolution/bias",)))
  for number in range(config.stored_layers["encoder"]):
    theirs, ours = f"encoder.layer.{number}.attention.self", f"encoder/layers_{number}/attention"
    found += _later(config, theirs, ours) if config.use_key_bias else _first(config, theirs, ours)
  return found


def _first(config: TransformerConfig, theirs: str, ours: str) -> list[Rule]:
  """Returns the rules of a layer's projections in version 1."""
  kernels = tuple(f"{ours}/{name}/kernel" for name in ("query", "key", "value"))
  return [
    Rule(f"{theirs}.in_proj.weight", kernels, transpose=True, heads=config.num_heads),
    Rule(f"{theirs}.q_bias", (f"{ours}/query/bias",)),
    Rule(f"{theirs}.v_bias", (f"{ours}/value/bias",)),
    Rule(f"{theirs}.pos_proj.weight", (f"{ours}/position_key/kernel",), transpose=True),
    Rule(f"{theirs}.pos_q_proj.weight", (f"{ours}/position_query/kernel",), transpose=True),
    Rule(f"{theirs}.pos_q_proj.bias", (f"{ours}/position_query/bias",)),
  ]


def _later(config: TransformerConfig, theirs: str, ours: str) -> list[Rule]:
  """Returns the rules of a layer's projections in versions 2 and 3."""
  names = {name: f"{name}_proj" for name in ("query", "key", "value")}
  if not config.share_position_projections:
    names |= {"position_query": "pos_query_proj", "position_key": "pos_key_proj"}
  return [
    rule
    for own, name in names.items()
    for rule in (
      Rule(f"{theirs}.{name}.weight", (f"{ours}/{own}/kernel",), transpose=True),
      Rule(f"{theirs}.{name}.bias", (f"{ours}/{own}/bias",)),
    )
  ]
