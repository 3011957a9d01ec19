"""Hugging Face's BLOOM: ALiBi, a norm of the embeddings, and query, key and value in one tensor, head by head.

Dropout differs slightly in training: ours also drops elements of the embeddings.
"""

from collections.abc import Mapping

from t5like.interop.decoders.names import QKV, Names, check_known, check_output
from t5like.interop.hf_fields import check_values, require_fields
from t5like.models import TransformerConfig

CLASSES = {"bloom": "Bloom"}
PREFIX, OUTSIDE = "transformer.", ("lm_head.",)
IGNORED = ()
NAMES = Names(
  layer="h.{}",
  in_layer={
    QKV: "self_attention.query_key_value",
    "attention/out": "self_attention.dense",
    "attention_norm": "input_layernorm",
    "mlp/wi": "mlp.dense_h_to_4h",
    "mlp/wo": "mlp.dense_4h_to_h",
    "mlp_norm": "post_attention_layernorm",
  },
  parts={"token_embedder/norm": "word_embeddings_layernorm", "decoder/final_norm": "ln_f"},
  tensors={"token_embedder/embedding": "word_embeddings.weight"},
)
rules = NAMES.rules
# The last ones are of the original training and not read by transformers.
_FIELDS = (
  "vocab_size", "hidden_size", "n_embed", "n_layer", "n_head", "num_hidden_layers", "num_attention_heads",
  "layer_norm_epsilon", "hidden_dropout", "attention_dropout",
  "seq_length", "skip_bias_add", "skip_bias_add_qkv", "attention_softmax_in_fp32", "masked_softmax_fusion",
  "bias_dropout_fusion", "offset_alibi", "n_inner", "slow_but_exact",
)  # fmt: skip


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  check_known(hf, "BLOOM", _FIELDS)
  check_output(hf, names, tied=True)
  width = hf.get("n_embed") or hf["hidden_size"]
  check_values({"n_inner": hf.get("n_inner") or 4 * width}, "BLOOM", n_inner=4 * width)
  if hf.get("pretraining_tp", 1) > 1:  # with which transformers leaves biases out
    check_values(hf, "BLOOM", slow_but_exact=False)
  return TransformerConfig(
    vocab_size=hf["vocab_size"],
    embed_dim=width,
    mlp_dim=4 * width,
    num_heads=hf.get("n_head") or hf["num_attention_heads"],
    num_decoder_layers=hf.get("n_layer") or hf["num_hidden_layers"],
    activation="gelu",
    norm="layer",
    norm_epsilon=hf.get("layer_norm_epsilon", 1e-5),
    use_bias=True,
    scale_attention=True,
    positions="alibi",
    embedding_norm=True,
    tie_embeddings=tied,
    scale_logits=False,
    dropout_rate=hf.get("hidden_dropout", 0.0),
    attention_dropout_rate=hf.get("attention_dropout", 0.0),
    mlp_dropout_rate=0.0,
    final_dropout=False,
    initializer="normal",
    initializer_stddev=hf.get("initializer_range", 0.02),
  )


def config_to_hf(config: TransformerConfig, model_type: str = "bloom") -> dict:
  require_fields(
    config, "BLOOM", norm="layer", norm_position="pre", positions="alibi", activation="gelu", gated_mlp=False,
    use_bias=True, use_key_bias=True, scale_attention=True, scale_embeddings=False, scale_logits=False,
    embedding_norm=True, embedding_dim=None, num_kv_heads=None, qk_norm=False, attention_window=None, prefix_lm=False,
    mlp_dim=4 * config.embed_dim, head_dim=config.embed_dim // config.num_heads,
  )  # fmt: skip
  return {
    "architectures": ["BloomForCausalLM"],
    "model_type": model_type,
    "vocab_size": config.vocab_size,
    "hidden_size": config.embed_dim,
    "n_layer": config.num_decoder_layers,
    "n_head": config.num_heads,
    "layer_norm_epsilon": config.norm_epsilon,
    "hidden_dropout": config.dropout_rate,
    "attention_dropout": config.attention_dropout,
    "initializer_range": config.initializer_stddev,
    "tie_word_embeddings": config.tie_embeddings,
  }
