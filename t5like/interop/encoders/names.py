"""Shared by the encoder families: a name table becomes rules, and config.json our config, in both directions."""

import dataclasses
from collections.abc import Mapping

from t5like.errors import UserError
from t5like.interop.hf_fields import from_hf_activation, require_fields, require_output, to_hf_activation
from t5like.interop.mapping import Rule, part_rules
from t5like.models import TransformerConfig

POSITION_IDS = r"embeddings\.position_ids"  # a constant buffer in older files


@dataclasses.dataclass(frozen=True)
class Names:
  """The tensors of a family: our parameters and their names.

  layer     of a layer's tensors; {} is its number
  in_layer  dense layers and norms of a layer
  parts     other dense layers and norms
  tensors   single arrays
  copies    of parts and single arrays: names under which a file may have the same arrays, in addition or instead
  """

  layer: str
  in_layer: Mapping[str, str]
  parts: Mapping[str, str]
  tensors: Mapping[str, str]
  copies: Mapping[str, tuple[str, ...]]

  def rules(self, config: TransformerConfig) -> list[Rule]:
    """Returns the rules for the parameters that a config has."""
    found = [
      Rule(theirs, (ours,), copies=self.copies.get(ours, ()))
      for ours, theirs in self.tensors.items()
      if _has(config, ours)
    ]
    for ours, theirs in self.parts.items():
      found += part_rules(ours, theirs, self.copies.get(ours, ())) if _has(config, ours) else []
    for number in range(config.stored_layers["encoder"]):
      for ours, theirs in self.in_layer.items():
        found += part_rules(f"encoder/layers_{number}/{ours}", f"{self.layer.format(number)}.{theirs}")
    return found


_PARTS = {
  "token_embedder/position_embedding": lambda config: config.positions == "learned",
  "token_embedder/token_type_embedding": lambda config: config.num_token_types > 0,
  "encoder/convolution": lambda config: config.convolution_width > 0,
  "encoder/relative_embedding/norm": lambda config: config.relative_norm,
  "token_embedder/project": lambda config: config.embedding_dim is not None,
  "pooler": lambda config: config.pooler,
  "mlm_head": lambda config: config.mlm_head,
  "discriminator_head": lambda config: config.discriminator_head,
  "nsp_head": lambda config: config.nsp_head,
}


def _has(config: TransformerConfig, path: str) -> bool:
  return all(present(config) for part, present in _PARTS.items() if f"{path}/".startswith(f"{part}/"))


def check_tied(hf: Mapping, names: set[str], tied: bool, output: str) -> None:
  """Raises UserError if the output projection of masked tokens is not the embedding."""
  if not tied:
    raise UserError("an encoder with an untied output projection is not supported", tensor=output)
  require_output(hf, names, output)


def check_head_activation(config: TransformerConfig, family: str) -> None:
  """Raises UserError if the head for masked tokens has another activation than the family's class, an exact GELU."""
  if config.mlm_head and config.activation != "gelu_erf":
    raise UserError(
      f"Hugging Face's {family} does not support activation = {config.activation!r} before its output projection",
      expected="activation = 'gelu_erf'",
    )


def encoder_config(hf: Mapping, **fields: object) -> TransformerConfig:
  """Returns the config of a post-norm encoder with BERT's fields in config.json; `fields` are those that differ."""
  scheme = hf.get("position_embedding_type", "absolute")
  if hf.get("is_decoder"):
    raise UserError("this model is a decoder: only encoders of its family are supported", is_decoder=True)
  if scheme != "absolute":
    raise UserError("only encoders with absolute positions are supported", position_embedding_type=scheme)
  values = dict(
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
    dropout_rate=hf.get("hidden_dropout_prob", 0.1),
    attention_dropout_rate=hf.get("attention_probs_dropout_prob", 0.1),
    mlp_dropout_rate=0.0,
    final_dropout=False,
    initializer="normal",
    initializer_stddev=hf.get("initializer_range", 0.02),
  )
  return TransformerConfig(**values | fields)


def encoder_fields(config: TransformerConfig, family: str, **needed: object) -> dict:
  """Returns BERT's fields of config.json; raises UserError unless the config is one of the family.

  `needed`: values of our fields that the family's classes need, where they differ from BERT's.
  """
  expected = dict(
    norm="layer", norm_position="post", positions="learned", use_bias=True, gated_mlp=False, scale_attention=True,
    embedding_norm=True, scale_embeddings=False, scale_logits=False, tie_embeddings=True, position_offset=0,
    embedding_dim=None, layer_groups=None, convolution_width=0, discriminator_head=False, use_key_bias=True,
    head_dim=config.embed_dim // config.num_heads,
  )  # fmt: skip
  require_fields(config, family, **expected | needed)
  return {
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
    "attention_probs_dropout_prob": config.attention_dropout,
    "initializer_range": config.initializer_stddev,
    "pad_token_id": config.padding_id,
  }
