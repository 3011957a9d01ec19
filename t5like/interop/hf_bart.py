"""Hugging Face's BART (post-norm) and mBART (pre-norm), and models in their format.

A checkpoint has `final_logits_bias`, zeros in all published ones. Zeros are left out of our parameters and written
again; other values become `logits_bias`, a constant, as in their buffer.
"""

from collections.abc import Mapping

from t5like.errors import UserError
from t5like.interop.hf_fields import from_hf_activation, require_fields, to_hf_activation
from t5like.interop.mapping import Rule, part_rules
from t5like.models import TransformerConfig

CLASS_NAMES = {"bart": "Bart", "mbart": "MBart"}  # the beginning of class names by model_type
MODEL_TYPES = tuple(CLASS_NAMES)
PREFIX, OUTSIDE = "model.", ("lm_head.", "final_logits_bias")
IGNORED = ()
ZEROS = ("final_logits_bias",)
_OFFSET = 2  # rows of the table before the first position
_LAYER = {
  "attention_norm": "self_attn_layer_norm",
  "mlp/wi": "fc1",
  "mlp/wo": "fc2",
  "mlp_norm": "final_layer_norm",
}
_CROSS = {"cross_attention_norm": "encoder_attn_layer_norm"}
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  if not tied:
    raise UserError("a BART with an untied output projection is not supported", tensor="lm_head.weight")
  for kind in ("ffn_dim", "attention_heads"):
    if hf[f"encoder_{kind}"] != hf[f"decoder_{kind}"]:
      raise UserError(f"encoder and decoder with different {kind} are not supported", field=f"decoder_{kind}")
  is_bart = hf["model_type"] == "bart"
  return TransformerConfig(
    vocab_size=hf["vocab_size"],
    embed_dim=hf["d_model"],
    mlp_dim=hf["encoder_ffn_dim"],
    num_heads=hf["encoder_attention_heads"],
    num_encoder_layers=hf["encoder_layers"],
    num_decoder_layers=hf["decoder_layers"],
    activation=from_hf_activation(hf.get("activation_function", "gelu")),
    norm="layer",
    norm_epsilon=1e-5,
    norm_position="post" if is_bart else "pre",
    use_bias=True,
    scale_attention=True,
    positions="learned",
    positions_per_stack=True,
    max_positions=hf["max_position_embeddings"],
    position_offset=_OFFSET,
    padding_id=hf.get("pad_token_id", 1),
    start_id=hf.get("decoder_start_token_id", 2 if is_bart else None),
    # Texts are <s> text </s> for BART; mBART's have a language code after them, or (mBART-50) before.
    opening_id=hf.get("bos_token_id", 0) if is_bart else None,
    scale_embeddings=bool(hf.get("scale_embedding", False)),
    scale_logits=False,
    logits_bias="final_logits_bias" in names,
    embedding_norm=True,
    dropout_rate=hf.get("dropout", 0.1),
    attention_dropout_rate=hf.get("attention_dropout", 0.0),
    mlp_dropout_rate=hf.get("activation_dropout", 0.0),
    final_dropout=False,
    initializer="normal",
    initializer_stddev=hf.get("init_std", 0.02),
  )


def config_to_hf(config: TransformerConfig) -> dict:
  kind = "bart" if config.norm_position == "post" else "mbart"
  require_fields(
    config, CLASS_NAMES[kind].upper(), norm="layer", norm_epsilon=1e-5, positions="learned", positions_per_stack=True,
    position_offset=_OFFSET, use_bias=True, use_key_bias=True, gated_mlp=False, scale_attention=True,
    embedding_norm=True, scale_logits=False, tie_embeddings=True, num_token_types=0, embedding_dim=None,
    head_dim=config.embed_dim // config.num_heads,
  )  # fmt: skip
  stacks = {
    f"{stack}_{name}": value
    for stack, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers))
    for name, value in (("layers", layers), ("ffn_dim", config.mlp_dim), ("attention_heads", config.num_heads))
  }
  return stacks | {
    "architectures": [f"{CLASS_NAMES[kind]}ForConditionalGeneration"],
    "model_type": kind,
    "vocab_size": config.vocab_size,
    "d_model": config.embed_dim,
    "activation_function": to_hf_activation(config.activation),
    "max_position_embeddings": config.max_positions,
    "scale_embedding": config.scale_embeddings,
    "dropout": config.dropout_rate,
    "attention_dropout": config.attention_dropout,
    "activation_dropout": config.mlp_dropout,
    "init_std": config.initializer_stddev,
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
    "pad_token_id": config.padding_id,
    "bos_token_id": 0 if config.opening_id is None else config.opening_id,
    "eos_token_id": 2,
    "decoder_start_token_id": config.start_id,
  }


def rules(config: TransformerConfig) -> list[Rule]:
  copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
  found = [Rule("shared.weight", ("token_embedder/embedding",), copies=copies)]
  if config.logits_bias:
    found.append(Rule("final_logits_bias", ("logits_bias/bias",), as_row=True))
  for stack, layers in config.stored_layers.items():
    embedder = "token_embedder" if stack == "encoder" else "token_embedder/decoder"
    found.append(Rule(f"{stack}.embed_positions.weight", (f"{embedder}/position_embedding",)))
    found += part_rules(f"{embedder}/norm", f"{stack}.layernorm_embedding")
    if config.norm_position == "pre":
      found += part_rules(f"{stack}/final_norm", f"{stack}.layer_norm")
    for number in range(layers):
      for ours, theirs in _layer(has_cross=stack == "decoder").items():
        found += part_rules(f"{stack}/layers_{number}/{ours}", f"{stack}.layers.{number}.{theirs}")
  return found


def _layer(has_cross: bool) -> dict[str, str]:
  """Returns the names of a layer's dense layers and norms."""
  modules = {"attention": "self_attn"} | ({"cross_attention": "encoder_attn"} if has_cross else {})
  projections = {
    f"{ours}/{own}": f"{theirs}.{name}" for ours, theirs in modules.items() for own, name in _PROJECTIONS.items()
  }
  return projections | _LAYER | (_CROSS if has_cross else {})
