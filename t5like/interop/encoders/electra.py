"""Hugging Face's ELECTRA: discriminator (ForPreTraining) and generator (ForMaskedLM), both encoders like BERT's.

The tables are projected where their width differs from the layers'. The activation before the generator's output
projection is always the exact GELU.
"""

from collections.abc import Mapping

from t5like.errors import UserError
from t5like.interop.encoders.bert import EMBEDDINGS, IGNORED, LAYER
from t5like.interop.encoders.names import Names, check_head_activation, check_tied, encoder_config, encoder_fields
from t5like.models import TransformerConfig

__all__ = ["CLASSES", "IGNORED", "OUTSIDE", "PREFIX", "config_from_hf", "config_to_hf", "rules"]

CLASSES = {"electra": "Electra"}
PREFIX, OUTSIDE = "electra.", ("generator_", "discriminator_")
NAMES = Names(
  layer="encoder.layer.{}",
  in_layer=LAYER,
  parts={
    "token_embedder/norm": "embeddings.LayerNorm",
    "token_embedder/project": "embeddings_project",
    "mlm_head/transform": "generator_predictions.dense",
    "mlm_head/norm": "generator_predictions.LayerNorm",
    "discriminator_head/dense": "discriminator_predictions.dense",
    "discriminator_head/out": "discriminator_predictions.dense_prediction",
  },
  tensors=EMBEDDINGS | {"mlm_head/bias": "generator_lm_head.bias"},
  copies={"token_embedder/embedding": ("generator_lm_head.weight",)},
)
rules = NAMES.rules


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  mlm_head = "generator_predictions.dense.weight" in names
  if mlm_head or not tied:
    check_tied(hf, names, tied, "generator_lm_head.weight")
  width = hf["embedding_size"]
  config = encoder_config(
    hf,
    embedding_dim=None if width == hf["hidden_size"] else width,
    mlm_head=mlm_head,
    discriminator_head="discriminator_predictions.dense.weight" in names,
  )
  check_head_activation(config, "ELECTRA")
  return config


def config_to_hf(config: TransformerConfig, model_type: str = "electra") -> dict:
  check_head_activation(config, "ELECTRA")
  if config.mlm_head and config.discriminator_head:
    raise UserError("Hugging Face's ELECTRA is a generator or a discriminator", expected="one of the two heads")
  kind = "ForMaskedLM" if config.mlm_head else "ForPreTraining" if config.discriminator_head else "Model"
  needed = dict(pooler=False, nsp_head=False, embedding_dim=config.embedding_dim)
  needed["discriminator_head"] = config.discriminator_head
  return encoder_fields(config, "ELECTRA", **needed) | {
    "model_type": model_type,
    "architectures": [f"Electra{kind}"],
    "embedding_size": config.embedding_width,
  }
