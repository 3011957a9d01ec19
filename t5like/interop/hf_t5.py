"""Hugging Face's T5 1.0, 1.1, mT5, ByT5 and UMT5."""

from collections.abc import Mapping

from t5like.errors import UserError
from t5like.interop.hf_fields import from_hf_activation, require_fields, to_hf_activation
from t5like.interop.mapping import Rule
from t5like.models import TransformerConfig

MODEL_TYPES = ("t5", "mt5", "umt5")
PREFIX, OUTSIDE = "", ()
IGNORED = ()


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  """Returns the config. `tied`: the output projection equals the embedding, or is absent."""
  activation, gated = _feed_forward(hf)
  padding = hf.get("pad_token_id") or 0
  start = padding if hf.get("decoder_start_token_id") is None else hf["decoder_start_token_id"]
  return TransformerConfig(
    vocab_size=hf["vocab_size"],
    embed_dim=hf["d_model"],
    mlp_dim=hf["d_ff"],
    num_heads=hf["num_heads"],
    head_dim=hf["d_kv"],
    num_encoder_layers=hf["num_layers"],
    num_decoder_layers=hf.get("num_decoder_layers") or hf["num_layers"],
    activation=from_hf_activation(activation),
    gated_mlp=gated,
    norm_epsilon=hf.get("layer_norm_epsilon", 1e-6),
    relative_buckets=hf.get("relative_attention_num_buckets", 32),
    relative_max_distance=hf.get("relative_attention_max_distance", 128),
    share_relative_bias=hf.get("model_type") != "umt5",
    padding_id=padding,
    start_id=start if start or padding else None,
    tie_embeddings=tied,
    scale_logits=_scales_outputs(hf),
    dropout_rate=hf.get("dropout_rate", 0.1),
  )


def _feed_forward(hf: Mapping) -> tuple[str, bool]:
  """Returns the activation's name, and whether the MLP is gated.

  Hugging Face reads "gated-gelu" as T5 1.1's tanh form and any other name literally. It stores the parsed fields too,
  which take precedence.
  """
  proj = hf.get("feed_forward_proj", "relu" if hf.get("model_type", "t5") == "t5" else "gated-gelu")
  gate, _, activation = proj.rpartition("-")
  if gate not in ("", "gated"):
    raise UserError(f"unknown feed_forward_proj {proj!r} in config.json", expected="gated-gelu")
  activation = "gelu_new" if proj == "gated-gelu" else activation
  return hf.get("dense_act_fn") or activation, bool(hf.get("is_gated_act", gate))


def _scales_outputs(hf: Mapping) -> bool:
  """Whether outputs are scaled by d_model**-0.5: Hugging Face's meaning of `tie_word_embeddings`; never in mT5."""
  if hf.get("model_type") == "mt5":
    return False
  return hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings") is not False)


def config_to_hf(config: TransformerConfig) -> dict:
  require_fields(
    config, "T5", norm="rms", norm_position="pre", positions="relative_bias", use_bias=False, scale_attention=False,
    scale_embeddings=False, share_encoder_decoder=False, share_relative_bias=True, embedding_dim=None,
  )  # fmt: skip
  activation = to_hf_activation(config.activation)
  if config.gated_mlp:  # "gated-gelu" is the tanh form; the exact one has another name
    activation = "gated-" + {"gelu_new": "gelu", "gelu": "gelu_python"}.get(activation, activation)
  return {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "vocab_size": config.vocab_size,
    "d_model": config.embed_dim,
    "d_ff": config.mlp_dim,
    "d_kv": config.head_dim,
    "num_heads": config.num_heads,
    "num_layers": config.num_encoder_layers,
    "num_decoder_layers": config.num_decoder_layers,
    "feed_forward_proj": activation,
    "layer_norm_epsilon": config.norm_epsilon,
    "relative_attention_num_buckets": config.relative_buckets,
    "relative_attention_max_distance": config.relative_max_distance,
    "dropout_rate": config.dropout_rate,
    "tie_word_embeddings": config.scale_logits,
    "scale_decoder_outputs": config.scale_logits,
    "is_encoder_decoder": True,
    "pad_token_id": config.padding_id,
    "eos_token_id": 1,
    "decoder_start_token_id": config.start_id or 0,
  }


def rules(config: TransformerConfig) -> list[Rule]:
  copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
  output = () if config.tie_embeddings else (Rule("lm_head.weight", ("logits_dense/kernel",), transpose=True),)
  return [
    Rule("shared.weight", ("token_embedder/embedding",), copies=copies + ("lm_head.weight",) * config.tie_embeddings),
    *_stack("encoder", config, config.num_encoder_layers, cross=False),
    *_stack("decoder", config, config.num_decoder_layers, cross=True),
    *output,
  ]


def _stack(stack: str, config: TransformerConfig, layers: int, cross: bool) -> list[Rule]:
  found = [Rule(f"{stack}.final_layer_norm.weight", (f"{stack}/final_norm/scale",))]
  # The bias table of a stack is in its first layer; UMT5 has one per layer.
  owners = [stack] if config.share_relative_bias else [f"{stack}/layers_{i}" for i in range(layers)]
  for i, owner in enumerate(owners):
    bias = f"{stack}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"
    found.append(Rule(bias, (f"{owner}/relpos_bias/rel_embedding",), transpose=True))
  for i in range(layers):
    theirs, ours = f"{stack}.block.{i}.layer", f"{stack}/layers_{i}"
    found += _attention(f"{theirs}.0", "SelfAttention", f"{ours}/attention")
    if cross:
      found += _attention(f"{theirs}.1", "EncDecAttention", f"{ours}/cross_attention")
    mlp = 2 if cross else 1
    for kernel in ("wi_0", "wi_1", "wo") if config.gated_mlp else ("wi", "wo"):
      name = f"{theirs}.{mlp}.DenseReluDense.{kernel}.weight"
      found.append(Rule(name, (f"{ours}/mlp/{kernel}/kernel",), transpose=True))
    found.append(Rule(f"{theirs}.{mlp}.layer_norm.weight", (f"{ours}/mlp_norm/scale",)))
  return found


def _attention(theirs: str, module: str, ours: str) -> list[Rule]:
  kernels = {"q": "query", "k": "key", "v": "value", "o": "out"}
  return [
    *(Rule(f"{theirs}.{module}.{k}.weight", (f"{ours}/{n}/kernel",), transpose=True) for k, n in kernels.items()),
    Rule(f"{theirs}.layer_norm.weight", (f"{ours}_norm/scale",)),
  ]
