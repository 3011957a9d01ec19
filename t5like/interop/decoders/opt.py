"""Hugging Face's OPT: GPT-2's blocks with ReLU and positions numbered from 2.

OPT-350m normalizes after the sum, and has token embeddings of their own width with a projection in and out. Dropout
differs slightly in training: ours also drops elements of the embeddings.
"""

from collections.abc import Mapping

from t5like.interop.decoders.names import Names, check_known, check_output
from t5like.interop.hf_fields import check_values, from_hf_activation, require_fields, to_hf_activation
from t5like.models import TransformerConfig

CLASSES = {"opt": "OPT"}
PREFIX, OUTSIDE = "model.", ("lm_head.",)
IGNORED = ()
_OFFSET = 2
NAMES = Names(
  layer="decoder.layers.{}",
  in_layer={
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "mlp/wi": "fc1",
    "mlp/wo": "fc2",
    "mlp_norm": "final_layer_norm",
  },
  parts={
    "token_embedder/project": "decoder.project_in",
    "token_embedder/project_back": "decoder.project_out",
    "decoder/final_norm": "decoder.final_layer_norm",
  },
  tensors={
    "token_embedder/embedding": "decoder.embed_tokens.weight",
    "token_embedder/position_embedding": "decoder.embed_positions.weight",
  },
)
rules = NAMES.rules
_FIELDS = (
  "vocab_size", "hidden_size", "ffn_dim", "num_attention_heads", "num_hidden_layers", "activation_function",
  "max_position_embeddings", "word_embed_proj_dim", "do_layer_norm_before", "dropout", "attention_dropout",
  "enable_bias", "layer_norm_elementwise_affine", "layerdrop", "activation_dropout",
)  # fmt: skip


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  check_known(hf, "OPT", _FIELDS)
  check_values(hf, "OPT", _remove_final_layer_norm=False, layer_norm_elementwise_affine=True)
  check_output(hf, names, tied=True)
  width, before = hf.get("word_embed_proj_dim") or hf["hidden_size"], hf.get("do_layer_norm_before", True)
  projected = width != hf["hidden_size"]
  if projected:
    check_values(hf, "OPT with word_embed_proj_dim", tie_word_embeddings=True)
  return TransformerConfig(
    vocab_size=hf["vocab_size"],
    embed_dim=hf["hidden_size"],
    mlp_dim=hf["ffn_dim"],
    num_heads=hf["num_attention_heads"],
    num_decoder_layers=hf["num_hidden_layers"],
    activation=from_hf_activation(hf.get("activation_function", "relu")),
    norm="layer",
    norm_epsilon=1e-5,
    norm_position="pre" if before else "post",
    use_bias=hf.get("enable_bias", True),
    scale_attention=True,
    positions="learned",
    position_offset=_OFFSET,
    max_positions=hf["max_position_embeddings"],
    embedding_dim=width if projected else None,
    embedding_projection="tokens" if projected else "sum",
    tie_embeddings=tied,
    scale_logits=False,
    dropout_rate=hf.get("dropout", 0.1),
    attention_dropout_rate=hf.get("attention_dropout", 0.0),
    mlp_dropout_rate=0.0,
    final_dropout=False,
    initializer="normal",
    initializer_stddev=hf.get("init_std", 0.02),
  )


def config_to_hf(config: TransformerConfig, model_type: str = "opt") -> dict:
  require_fields(
    config, "OPT", norm="layer", norm_epsilon=1e-5, positions="learned", position_offset=_OFFSET, gated_mlp=False,
    scale_attention=True, scale_embeddings=False, scale_logits=False, embedding_norm=False, num_kv_heads=None,
    qk_norm=False, attention_window=None, use_key_bias=True, head_dim=config.embed_dim // config.num_heads,
    embedding_projection="sum" if config.embedding_dim is None else "tokens", prefix_lm=False,
    norm_position="post" if config.norm_position == "post" else "pre",
  )  # fmt: skip
  if config.embedding_dim is not None:
    require_fields(config, "OPT", tie_embeddings=True)
  return {
    "architectures": ["OPTForCausalLM"],
    "model_type": model_type,
    "vocab_size": config.vocab_size,
    "hidden_size": config.embed_dim,
    "ffn_dim": config.mlp_dim,
    "num_attention_heads": config.num_heads,
    "num_hidden_layers": config.num_decoder_layers,
    "activation_function": to_hf_activation(config.activation),
    "max_position_embeddings": config.max_positions,
    "word_embed_proj_dim": config.embedding_width,
    "do_layer_norm_before": config.norm_position == "pre",
    "enable_bias": config.use_bias,
    "dropout": config.dropout_rate,
    "attention_dropout": config.attention_dropout,
    "init_std": config.initializer_stddev,
    "pad_token_id": 1,  # of its vocabulary; a vocabulary that is exported, too, has its own
    "tie_word_embeddings": config.tie_embeddings,
  }
