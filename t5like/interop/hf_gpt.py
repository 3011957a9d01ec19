"""Hugging Face's GPT-1 and GPT-2.

Their `Conv1D` kernels are [in, out] like ours; query, key and value share one tensor.
"""

from collections.abc import Mapping

from t5like.errors import UserError
from t5like.interop.hf_fields import from_hf_activation, require_fields, require_output, to_hf_activation
from t5like.interop.hf_heads import find_head
from t5like.interop.mapping import Rule
from t5like.models import TransformerConfig

MODEL_TYPES = ("gpt2", "openai-gpt")
PREFIX, OUTSIDE = "transformer.", ("lm_head.",)  # before the names of tensors; names without it
IGNORED = (r"h\.\d+\.attn\.(bias|masked_bias)", r"position_ids")  # buffers: causal mask and position counter


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  for field in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
    if hf.get(field):
      raise UserError(f"GPT-2 with {field} is not supported", field=f"{field} in config.json")
  if find_head(hf) is None:
    require_output(hf, names, "lm_head.weight")
  is_gpt1 = hf["model_type"] == "openai-gpt"
  # GPT-1 calls the tanh form "gelu".
  activation = hf.get("afn", "gelu") if is_gpt1 else hf.get("activation_function", "gelu_new")
  activation = "gelu_new" if is_gpt1 and activation == "gelu" else activation
  return TransformerConfig(
    vocab_size=hf["vocab_size"],
    embed_dim=hf["n_embd"],
    mlp_dim=hf.get("n_inner") or 4 * hf["n_embd"],
    num_heads=hf["n_head"],
    num_decoder_layers=hf["n_layer"],
    activation=from_hf_activation(activation),
    norm="layer",
    norm_epsilon=hf.get("layer_norm_epsilon", 1e-5),
    norm_position="post" if is_gpt1 else "pre",
    use_bias=True,
    scale_attention=hf.get("scale_attn_weights", True),
    positions="learned",
    max_positions=hf["n_positions"],
    tie_embeddings=tied,
    scale_logits=False,
    dropout_rate=hf.get("resid_pdrop", 0.1),
    attention_dropout_rate=hf.get("attn_pdrop", 0.1),
    mlp_dropout_rate=0.0,
    final_dropout=False,
    initializer="normal",
    initializer_stddev=hf.get("initializer_range", 0.02),
    scale_residual_init=not is_gpt1,
  )


def config_to_hf(config: TransformerConfig) -> dict:
  require_fields(
    config, "GPT", norm="layer", positions="learned", use_bias=True, gated_mlp=False, scale_embeddings=False,
    scale_logits=False, embedding_norm=False, prefix_lm=False, head_dim=config.embed_dim // config.num_heads,
  )  # fmt: skip
  if config.norm_position == "post":
    require_fields(config, "GPT-1", scale_attention=True, mlp_dim=4 * config.embed_dim)
    if config.activation == "gelu_erf":  # the name "gelu" denotes the tanh form there
      require_fields(config, "GPT-1", activation="gelu")
  activation = to_hf_activation(config.activation)
  common = {
    "vocab_size": config.vocab_size,
    "n_embd": config.embed_dim,
    "n_head": config.num_heads,
    "n_layer": config.num_decoder_layers,
    "n_positions": config.max_positions,
    "layer_norm_epsilon": config.norm_epsilon,
    "resid_pdrop": config.dropout_rate,
    "embd_pdrop": config.dropout_rate,
    "attn_pdrop": config.attention_dropout,
    "initializer_range": config.initializer_stddev,
    "tie_word_embeddings": config.tie_embeddings,
  }
  if config.norm_position == "post":
    gpt1 = {"architectures": ["OpenAIGPTLMHeadModel"], "model_type": "openai-gpt"}
    return gpt1 | common | {"afn": "gelu" if activation == "gelu_new" else activation}
  gpt2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
  own = {
    "activation_function": activation,
    "n_inner": config.mlp_dim,
    "scale_attn_weights": config.scale_attention,
    "bos_token_id": config.vocab_size - 1,
    "eos_token_id": config.vocab_size - 1,
  }
  return gpt2 | common | own


def rules(config: TransformerConfig) -> list[Rule]:
  is_gpt1 = config.norm_position == "post"
  tokens, positions = ("tokens_embed", "positions_embed") if is_gpt1 else ("wte", "wpe")
  copies = ("lm_head.weight",) if config.tie_embeddings else ()
  found = [
    Rule(f"{tokens}.weight", ("token_embedder/embedding",), copies=copies),
    Rule(f"{positions}.weight", ("token_embedder/position_embedding",)),
  ]
  for i in range(config.num_decoder_layers):
    found += _layer(f"h.{i}", f"decoder/layers_{i}")
  if not is_gpt1:
    found += _pair("ln_f", ("decoder/final_norm",), "scale")
  if not config.tie_embeddings:
    found.append(Rule("lm_head.weight", ("logits_dense/kernel",), transpose=True))
  return found


def _layer(theirs: str, ours: str) -> list[Rule]:
  qkv = tuple(f"{ours}/attention/{name}" for name in ("query", "key", "value"))
  return [
    *_pair(f"{theirs}.ln_1", (f"{ours}/attention_norm",), "scale"),
    *_pair(f"{theirs}.attn.c_attn", qkv, "kernel"),
    *_pair(f"{theirs}.attn.c_proj", (f"{ours}/attention/out",), "kernel"),
    *_pair(f"{theirs}.ln_2", (f"{ours}/mlp_norm",), "scale"),
    *_pair(f"{theirs}.mlp.c_fc", (f"{ours}/mlp/wi",), "kernel"),
    *_pair(f"{theirs}.mlp.c_proj", (f"{ours}/mlp/wo",), "kernel"),
  ]


def _pair(theirs: str, ours: tuple[str, ...], weight: str) -> list[Rule]:
  return [
    Rule(f"{theirs}.weight", tuple(f"{path}/{weight}" for path in ours)),
    Rule(f"{theirs}.bias", tuple(f"{path}/bias" for path in ours)),
  ]
