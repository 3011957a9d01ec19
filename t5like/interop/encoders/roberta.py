"""Hugging Face's RoBERTa and XLM-R (also DistilRoBERTa, BabyBERTa).

Positions are numbered from the padding id + 1, so a table of 514 rows serves 512 positions. The activation before the
output projection is always the exact GELU.
"""

from collections.abc import Mapping

from t5like.interop.encoders.bert import EMBEDDINGS, IGNORED, LAYER
from t5like.interop.encoders.names import Names, check_head_activation, check_tied, encoder_config, encoder_fields
from t5like.models import TransformerConfig

__all__ = ["CLASSES", "IGNORED", "OUTSIDE", "PREFIX", "config_from_hf", "config_to_hf", "rules"]

PREFIX, OUTSIDE = "roberta.", ("lm_head.",)
CLASSES = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
NAMES = Names(
  layer="encoder.layer.{}",
  in_layer=LAYER,
  parts={
    "token_embedder/norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
    "mlm_head/transform": "lm_head.dense",
    "mlm_head/norm": "lm_head.layer_norm",
  },
  tensors=EMBEDDINGS | {"mlm_head/bias": "lm_head.bias"},
  copies={"token_embedder/embedding": ("lm_head.decoder.weight",), "mlm_head/bias": ("lm_head.decoder.bias",)},
)
rules = NAMES.rules


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  mlm_head, padding = "lm_head.dense.weight" in names, hf.get("pad_token_id", 1)
  if mlm_head or not tied:
    check_tied(hf, names, tied, "lm_head.decoder.weight")
  config = encoder_config(
    hf,
    padding_id=padding,
    position_offset=padding + 1,
    max_positions=hf["max_position_embeddings"] - padding - 1,
    pooler="pooler.dense.weight" in names,
    mlm_head=mlm_head,
  )
  check_head_activation(config, "RoBERTa")
  return config


def config_to_hf(config: TransformerConfig, model_type: str = "roberta") -> dict:
  check_head_activation(config, "RoBERTa")
  offset = config.padding_id + 1
  return encoder_fields(config, "RoBERTa", position_offset=offset, nsp_head=False) | {
    "model_type": model_type,
    "architectures": [CLASSES[model_type] + ("ForMaskedLM" if config.mlm_head else "Model")],
    "max_position_embeddings": config.max_positions + offset,
  }
