"""Hugging Face's DistilBERT: BERT without token types and pooler.

Dropout differs slightly in training: ours also drops elements of the attention's output.
"""

from collections.abc import Mapping

from t5like.interop.encoders.names import POSITION_IDS, Names, check_tied, encoder_config, encoder_fields
from t5like.models import TransformerConfig

CLASSES = {"distilbert": "DistilBert"}
PREFIX, OUTSIDE = "distilbert.", ("vocab_",)
IGNORED = (POSITION_IDS,)
NAMES = Names(
  layer="transformer.layer.{}",
  in_layer={
    "attention/query": "attention.q_lin",
    "attention/key": "attention.k_lin",
    "attention/value": "attention.v_lin",
    "attention/out": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "mlp/wi": "ffn.lin1",
    "mlp/wo": "ffn.lin2",
    "mlp_norm": "output_layer_norm",
  },
  parts={
    "token_embedder/norm": "embeddings.LayerNorm",
    "mlm_head/transform": "vocab_transform",
    "mlm_head/norm": "vocab_layer_norm",
  },
  tensors={
    "token_embedder/embedding": "embeddings.word_embeddings.weight",
    "token_embedder/position_embedding": "embeddings.position_embeddings.weight",
    "mlm_head/bias": "vocab_projector.bias",
  },
  copies={"token_embedder/embedding": ("vocab_projector.weight",)},
)
rules = NAMES.rules
# BERT's fields of config.json and DistilBERT's.
_FIELDS = {
  "hidden_size": "dim",
  "intermediate_size": "hidden_dim",
  "num_attention_heads": "n_heads",
  "num_hidden_layers": "n_layers",
  "hidden_act": "activation",
  "hidden_dropout_prob": "dropout",
  "attention_probs_dropout_prob": "attention_dropout",
}
_ABSENT = ("layer_norm_eps", "position_embedding_type", "type_vocab_size")


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  mlm_head = "vocab_transform.weight" in names
  if mlm_head or not tied:
    check_tied(hf, names, tied, "vocab_projector.weight")
  fields = {bert: hf[own] for bert, own in _FIELDS.items() if own in hf}
  # Transformers does not read layer_norm_eps.
  return encoder_config(dict(hf) | fields | {"type_vocab_size": 0, "layer_norm_eps": 1e-12}, mlm_head=mlm_head)


def config_to_hf(config: TransformerConfig, model_type: str = "distilbert") -> dict:
  absent = dict(num_token_types=0, pooler=False, nsp_head=False, norm_epsilon=1e-12)
  fields = encoder_fields(config, "DistilBERT", **absent)
  return {_FIELDS.get(name, name): value for name, value in fields.items() if name not in _ABSENT} | {
    "model_type": model_type,
    "architectures": ["DistilBertForMaskedLM" if config.mlm_head else "DistilBertModel"],
  }
