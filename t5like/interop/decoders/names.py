"""Shared by the decoder families: a name table becomes rules, and unknown fields of config.json are refused."""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from t5like.errors import UserError
from t5like.interop.hf_fields import require_output
from t5like.interop.mapping import Rule
from t5like.models import TransformerConfig

OUTPUT = "lm_head.weight"
QKV = "attention/query attention/key attention/value"
# Of every config.json; none changes what a model computes.
_NEUTRAL = re.compile(
  r"_.*|.*token.*|.*version|(torch_)?dtype|(use_|.*_)cache|architectures|model_type|pretraining_tp|auto_map|name_or_path|"
  r"is_decoder|is_encoder_decoder|tie_word_embeddings|initializer_range|init_std|max_length|temperature|top_k|top_p|"
  r"do_sample|attn_implementation|id2label|label2id|num_labels|problem_type|classifier_dropout|num_choices|"
  r"no_answer_threshold|output_attentions|output_hidden_states|return_dict(_in_generate)?|torchscript|"
  r"chunk_size_feed_forward|task_specific_params|finetuning_task|mlp_hidden_size|prefix|unsloth_fixed"
)


@dataclasses.dataclass(frozen=True)
class Names:
  """The tensors of a family: our parameters and their names.

  layer     of a layer's tensors; {} is its number
  in_layer  dense layers and norms of a layer; several of ours may be one of theirs, head by head
  parts     other dense layers and norms
  tensors   single arrays
  """

  layer: str
  in_layer: Mapping[str, str]
  parts: Mapping[str, str]
  tensors: Mapping[str, str]

  def rules(self, config: TransformerConfig) -> list[Rule]:
    """Returns the rules for the parameters that a config has."""
    found = []
    for ours, theirs in self.tensors.items():
      tied = config.tie_embeddings and ours == "token_embedder/embedding"
      found.append(Rule(theirs, (ours,), copies=(OUTPUT,) if tied else ()))
    for ours, theirs in self.parts.items():
      found += _part(config, (ours,), theirs) if _has(config, ours) else []
    for number in range(config.num_decoder_layers):
      for ours, theirs in self.in_layer.items():
        paths = tuple(f"decoder/layers_{number}/{path}" for path in ours.split())
        found += _part(config, paths, f"{self.layer.format(number)}.{theirs}")
    if not config.tie_embeddings:
      found.append(Rule(OUTPUT, ("logits_dense/kernel",), transpose=True))
    return found


def _has(config: TransformerConfig, path: str) -> bool:
  if path == "decoder/final_norm":
    return config.norm_position != "post"
  return config.embedding_dim is not None if path.startswith("token_embedder/project") else True


def _part(config: TransformerConfig, ours: tuple[str, ...], theirs: str) -> list[Rule]:
  is_norm = ours[0].endswith("norm")
  heads = config.num_heads if len(ours) > 1 else 1
  weight, biased = ("scale", config.norm == "layer") if is_norm else ("kernel", config.use_bias)
  biased = biased and not ours[0].startswith("token_embedder/project")
  kinds = [("weight", weight), *([("bias", "bias")] if biased else [])]
  return [
    Rule(f"{theirs}.{name}", tuple(f"{path}/{own}" for path in ours), not is_norm and name == "weight", heads=heads)
    for name, own in kinds
  ]


def check_known(hf: Mapping, family: str, known: Iterable[str]) -> None:
  """Raises UserError for a field of config.json that is switched on and that we do not know: it may change results."""
  for field, value in hf.items():
    if field not in set(known) and value and not _NEUTRAL.fullmatch(field):
      raise UserError(
        f"{family} with {field} = {str(value)[:60]!r} is not supported",
        field=f"{field} in config.json",
        try_="remove the field if it does not change what the model computes",
      )


def check_output(hf: Mapping, names: set[str], tied: bool) -> None:
  """Raises UserError if the output projection is missing; `tied` is what config.json means without the field."""
  if hf.get("architectures") and not str(hf["architectures"][0]).endswith("ForCausalLM"):
    return
  require_output({"tie_word_embeddings": hf.get("tie_word_embeddings", tied)}, names, OUTPUT)
