"""Hugging Face's BERT, and Google's bert_config.json."""

from collections.abc import Mapping

from t5like.errors import UserError
from t5like.interop.hf_fields import from_hf_activation, require_fields, require_output, to_hf_activation
from t5like.interop.mapping import Rule
from t5like.models import TransformerConfig

MODEL_TYPES = ("bert",)
PREFIX = "bert."
IGNORED = (r"embeddings\.position_ids",)  # a constant buffer in older files


def config_from_hf(hf: Mapping, names: set[str], tied: bool) -> TransformerConfig:
  """Returns the config, with the heads that the checkpoint has."""
  if not tied:
    raise UserError("BERT with an untied output projection is not supported", tensor="cls.predictions.decoder")
  mlm_head = "cls.predictions.transform.dense.weight" in names
  if mlm_head:
    require_output(hf, names, "cls.predictions.decoder.weight")
  scheme = hf.get("position_embedding_type", "absolute")
  if scheme != "absolute" or hf.get("is_decoder"):
    raise UserError("only BERT encoders with absolute positions are supported", position_embedding_type=scheme)
  return TransformerConfig(
    vocab_size=hf["vocab_size"],
    embed_dim=hf["hidden_size"],
    mlp_dim=hf["intermediate_size"],
    num_heads=hf["num_attention_heads"],
    num_encoder_layers=hf["num_hidden_layers"],
    activation=from_hf_activation(hf.get("hidden_act", "gelu")),
    norm="layer",
    norm_epsilon=hf.get("layer_norm_eps", 1e-12),
    norm_position="post",
    use_bias=True,
    scale_attention=True,
    positions="learned",
    max_positions=hf["max_position_embeddings"],
    num_token_types=hf["type_vocab_size"],
    embedding_norm=True,
    scale_logits=False,
    pooler="pooler.dense.weight" in names,
    mlm_head=mlm_head,
    nsp_head="cls.seq_relationship.weight" in names,
    dropout_rate=hf.get("hidden_dropout_prob", 0.1),
    attention_dropout_rate=hf.get("attention_probs_dropout_prob", 0.1),
    mlp_dropout_rate=0.0,
    final_dropout=False,
    initializer="normal",
    initializer_stddev=hf.get("initializer_range", 0.02),
  )


def config_to_hf(config: TransformerConfig) -> dict:
  require_fields(
    config, "BERT", norm="layer", norm_position="post", positions="learned", use_bias=True, gated_mlp=False,
    scale_attention=True, embedding_norm=True, scale_embeddings=False, scale_logits=False, tie_embeddings=True,
    head_dim=config.embed_dim // config.num_heads,
  )  # fmt: skip
  heads = {(True, True): "ForPreTraining", (True, False): "ForMaskedLM", (False, True): "ForNextSentencePrediction"}
  attention_dropout = config.attention_dropout_rate
  return {
    "architectures": ["Bert" + heads.get((config.mlm_head, config.nsp_head), "Model")],
    "model_type": "bert",
    "vocab_size": config.vocab_size,
    "hidden_size": config.embed_dim,
    "intermediate_size": config.mlp_dim,
    "num_attention_heads": config.num_heads,
    "num_hidden_layers": config.num_encoder_layers,
    "hidden_act": to_hf_activation(config.activation),
    "layer_norm_eps": config.norm_epsilon,
    "max_position_embeddings": config.max_positions,
    "position_embedding_type": "absolute",
    "type_vocab_size": max(config.num_token_types, 1),  # Hugging Face always adds one
    "hidden_dropout_prob": config.dropout_rate,
    "attention_probs_dropout_prob": config.dropout_rate if attention_dropout is None else attention_dropout,
    "initializer_range": config.initializer_stddev,
    "pad_token_id": 0,
  }


def rules(config: TransformerConfig) -> list[Rule]:
  found = [
    Rule(
      "embeddings.word_embeddings.weight", ("token_embedder/embedding",), copies=("cls.predictions.decoder.weight",)
    ),
    Rule("embeddings.position_embeddings.weight", ("token_embedder/position_embedding",)),
    *_norm("embeddings.LayerNorm", "token_embedder/norm"),
  ]
  if config.num_token_types:
    found.append(Rule("embeddings.token_type_embeddings.weight", ("token_embedder/token_type_embedding",)))
  for i in range(config.num_encoder_layers):
    found += _layer(f"encoder.layer.{i}", f"encoder/layers_{i}")
  if config.pooler:
    found += _dense("pooler.dense", "pooler")
  if config.mlm_head:
    head = "cls.predictions"
    found += _dense(f"{head}.transform.dense", "mlm_head/transform")
    found += _norm(f"{head}.transform.LayerNorm", "mlm_head/norm")
    found.append(Rule(f"{head}.bias", ("mlm_head/bias",), copies=(f"{head}.decoder.bias",)))
  if config.nsp_head:
    found += _dense("cls.seq_relationship", "nsp_head")
  return found


def _layer(theirs: str, ours: str) -> list[Rule]:
  return [
    *(rule for name in ("query", "key", "value")
      for rule in _dense(f"{theirs}.attention.self.{name}", f"{ours}/attention/{name}")),
    *_dense(f"{theirs}.attention.output.dense", f"{ours}/attention/out"),
    *_norm(f"{theirs}.attention.output.LayerNorm", f"{ours}/attention_norm"),
    *_dense(f"{theirs}.intermediate.dense", f"{ours}/mlp/wi"),
    *_dense(f"{theirs}.output.dense", f"{ours}/mlp/wo"),
    *_norm(f"{theirs}.output.LayerNorm", f"{ours}/mlp_norm"),
  ]  # fmt: skip


def _dense(theirs: str, ours: str) -> list[Rule]:
  return [Rule(f"{theirs}.weight", (f"{ours}/kernel",), transpose=True), Rule(f"{theirs}.bias", (f"{ours}/bias",))]


def _norm(theirs: str, ours: str) -> list[Rule]:
  # Early BERT releases call these gamma and beta, as in TensorFlow.
  return [
    Rule(f"{theirs}.weight", (f"{ours}/scale",), copies=(f"{theirs}.gamma",)),
    Rule(f"{theirs}.bias", (f"{ours}/bias",), copies=(f"{theirs}.beta",)),
  ]
