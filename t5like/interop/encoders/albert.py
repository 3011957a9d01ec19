"""Hugging Face's ALBERT: embeddings of their own width, and layers that share parameters.

Sentence-order prediction is our `nsp_head`: class 0 is the right order. Dropout differs slightly in training, if there
is any (version 2 has none): ours also drops elements of the MLP's output.
"""

from collections.abc import Mapping

from t5like.errors import UserError
from t5like.interop.encoders.bert import EMBEDDINGS, IGNORED
from t5like.interop.encoders.names import Names, check_tied, encoder_config, encoder_fields
from t5like.models import TransformerConfig

__all__ = ["CLASSES", "IGNORED", "OUTSIDE", "PREFIX", "config_from_hf", "config_to_hf", "rules"]

CLASSES = {"albert": "Albert"}
PREFIX, OUTSIDE = "albert.", ("predictions.", "sop_classifier.")
NAMES = Names(
  layer="encoder.albert_layer_groups.{}.albert_layers.0",
  in_layer={
    "attention/query": "attention.query",
    "attention/key": "attention.key",
    "attention/value": "attention.value",
    "attention/out": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "mlp/wi": "ffn",
    "mlp/wo": "ffn_output",
    "mlp_norm": "full_layer_layer_norm",
  },
  parts={
    "token_embedder/norm": "embeddings.LayerNorm",
    "token_embedder/project": "encoder.embedding_hidden_mapping_in",
    "pooler": "pooler",
    "mlm_head/transform": "predictions.dense",
    "mlm_head/norm": "predictions.LayerNorm",
    "nsp_head": "sop_classifier.classifier",
  },
  tensors=EMBEDDINGS | {"mlm_head/bias": "predictions.bias"},
  copies={"token_embedder/embedding": ("predictions.decoder.weight",), "mlm_head/bias": ("predictions.decoder.bias",)},
)
rules = NAMES.rules
# Of config.json, where they are not BERT's.
_DEFAULTS = {"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  mlm_head = "predictions.dense.weight" in names
  if mlm_head or not tied:
    check_tied(hf, names, tied, "predictions.decoder.weight")
  if hf.get("inner_group_num", 1) != 1:
    raise UserError("ALBERT with several layers in a group is not supported", inner_group_num=hf["inner_group_num"])
  return encoder_config(
    _DEFAULTS | dict(hf),
    embedding_dim=hf["embedding_size"],
    layer_groups=hf["num_hidden_groups"],
    pooler="pooler.weight" in names,
    mlm_head=mlm_head,
    nsp_head="sop_classifier.classifier.weight" in names,
  )


def config_to_hf(config: TransformerConfig, model_type: str = "albert") -> dict:
  groups = config.layer_groups or config.num_encoder_layers
  kind = "ForPreTraining" if config.nsp_head else "ForMaskedLM" if config.mlm_head else "Model"
  own = dict(embedding_dim=config.embedding_width, layer_groups=config.layer_groups)
  return encoder_fields(config, "ALBERT", **own) | {
    "model_type": model_type,
    "architectures": [f"Albert{kind}"],
    "embedding_size": config.embedding_width,
    "num_hidden_groups": groups,
    "inner_group_num": 1,
  }
