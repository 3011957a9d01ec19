"""Hugging Face's XLNet: LMHeadModel, and classes with heads. The query stream has no tensors but `mask_emb`.

Their attention kernels have an axis of heads; the output's is transposed.
"""

from collections.abc import Mapping

from t5like.interop.encoders.names import Names, check_tied
from t5like.interop.hf_fields import check_values, from_hf_activation, require_fields, to_hf_activation
from t5like.interop.mapping import Rule
from t5like.models import TransformerConfig, XLNet

CLASSES = {"xlnet": "XLNet"}
MODEL = XLNet
PREFIX, OUTSIDE = "transformer.", ("lm_loss.",)
IGNORED = ()
NAMES = Names(
  layer="layer.{}",
  in_layer={
    "attention_norm": "rel_attn.layer_norm",
    "mlp/wi": "ff.layer_1",
    "mlp/wo": "ff.layer_2",
    "mlp_norm": "ff.layer_norm",
  },
  parts={},
  tensors={"token_embedder/embedding": "word_embedding.weight", "mlm_head/bias": "lm_loss.bias"},
  copies={"token_embedder/embedding": ("lm_loss.weight",)},
)
_ATTENTION = {
  "query/kernel": "q",
  "key/kernel": "k",
  "value/kernel": "v",
  "out/kernel": "o",
  "position/kernel": "r",
  "content_bias": "r_w_bias",
  "position_bias": "r_r_bias",
  "segment_bias": "r_s_bias",
  "segment_embedding": "seg_embed",
}
# Fields of config.json with the only values that published models have.
_EXPECTED = {"attn_type": "bi", "bi_data": False, "clamp_len": -1, "same_length": False}


def rules(config: TransformerConfig) -> list[Rule]:
  found = [*NAMES.rules(config), Rule("mask_emb", ("mask_embedding",), split_last=config.embed_dim)]
  for number in range(config.stored_layers["encoder"]):
    for ours, theirs in _ATTENTION.items():
      found.append(
        Rule(
          f"layer.{number}.rel_attn.{theirs}",
          (f"encoder/layers_{number}/attention/{ours}",),
          transpose=theirs == "o",
          split_last=config.head_dim,
        )
      )
  return found


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  mlm_head = "lm_loss.bias" in names
  if mlm_head or not tied:
    check_tied(hf, names, tied, "lm_loss.weight")
  check_values(hf, "XLNet", **_EXPECTED)
  return TransformerConfig(
    vocab_size=hf.get("vocab_size", hf.get("n_token")),
    embed_dim=hf["d_model"],
    mlp_dim=hf["d_inner"],
    num_heads=hf["n_head"],
    head_dim=hf.get("d_head") or hf["d_model"] // hf["n_head"],
    num_encoder_layers=hf["n_layer"],
    activation=from_hf_activation(hf.get("ff_activation", "gelu")),
    norm="layer",
    norm_epsilon=hf.get("layer_norm_eps", 1e-12),
    norm_position="post",
    use_bias=True,
    scale_attention=True,
    positions="transformer_xl",
    padding_id=hf.get("pad_token_id", 5),
    scale_logits=False,
    mlm_head=mlm_head,
    dropout_rate=hf.get("dropout", 0.1),
    initializer="normal",
    initializer_stddev=hf.get("initializer_range", 0.02),
  )


def config_to_hf(config: TransformerConfig, model_type: str = "xlnet") -> dict:
  require_fields(
    config, "XLNet", norm="layer", use_bias=True, gated_mlp=False, scale_attention=True, positions="transformer_xl",
    embedding_norm=False, scale_embeddings=False, scale_logits=False, layer_groups=None, convolution_width=0,
    head_dim=config.embed_dim // config.num_heads, attention_dropout=config.dropout_rate,
  )  # fmt: skip
  return _EXPECTED | {
    "model_type": model_type,
    "architectures": ["XLNetLMHeadModel" if config.mlm_head else "XLNetModel"],
    "vocab_size": config.vocab_size,
    "d_model": config.embed_dim,
    "d_inner": config.mlp_dim,
    "n_head": config.num_heads,
    "d_head": config.head_dim,
    "n_layer": config.num_encoder_layers,
    "ff_activation": to_hf_activation(config.activation),
    "layer_norm_eps": config.norm_epsilon,
    "dropout": config.dropout_rate,
    "initializer_range": config.initializer_stddev,
    "pad_token_id": config.padding_id,
  }
