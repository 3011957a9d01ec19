"""Hugging Face's BERT (also mBERT, SpanBERT, MiniLM, TinyBERT), and Google's bert_config.json."""

from collections.abc import Mapping

from t5like.interop.encoders.names import POSITION_IDS, Names, check_tied, encoder_config, encoder_fields
from t5like.models import TransformerConfig

CLASSES = {"bert": "Bert"}  # the beginning of class names by model_type
PREFIX, OUTSIDE = "bert.", ("cls.",)  # before the names of the encoder's tensors; names without it
IGNORED = (POSITION_IDS,)
LAYER = {
  "attention/query": "attention.self.query",
  "attention/key": "attention.self.key",
  "attention/value": "attention.self.value",
  "attention/out": "attention.output.dense",
  "attention_norm": "attention.output.LayerNorm",
  "mlp/wi": "intermediate.dense",
  "mlp/wo": "output.dense",
  "mlp_norm": "output.LayerNorm",
}
EMBEDDINGS = {
  "token_embedder/embedding": "embeddings.word_embeddings.weight",
  "token_embedder/position_embedding": "embeddings.position_embeddings.weight",
  "token_embedder/token_type_embedding": "embeddings.token_type_embeddings.weight",
}
NAMES = Names(
  layer="encoder.layer.{}",
  in_layer=LAYER,
  parts={
    "token_embedder/norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
    "mlm_head/transform": "cls.predictions.transform.dense",
    "mlm_head/norm": "cls.predictions.transform.LayerNorm",
    "nsp_head": "cls.seq_relationship",
  },
  tensors=EMBEDDINGS | {"mlm_head/bias": "cls.predictions.bias"},
  copies={
    "token_embedder/embedding": ("cls.predictions.decoder.weight",),
    "mlm_head/bias": ("cls.predictions.decoder.bias",),
  },
)
rules = NAMES.rules
_HEADS = {(True, True): "ForPreTraining", (True, False): "ForMaskedLM", (False, True): "ForNextSentencePrediction"}


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  """Returns the config, with the heads that the checkpoint has."""
  mlm_head = "cls.predictions.transform.dense.weight" in names
  if mlm_head or not tied:
    check_tied(hf, names, tied, "cls.predictions.decoder.weight")
  return encoder_config(
    hf,
    pooler="pooler.dense.weight" in names,
    mlm_head=mlm_head,
    nsp_head="cls.seq_relationship.weight" in names,
  )


def config_to_hf(config: TransformerConfig, model_type: str = "bert") -> dict:
  kind = _HEADS.get((config.mlm_head, config.nsp_head), "Model")
  return encoder_fields(config, "BERT") | {"model_type": model_type, "architectures": [f"Bert{kind}"]}
