"""What the families' config.json have in common: activation names, and fields that theirs cannot say."""

from collections.abc import Collection, Mapping

from t5like.errors import UserError, nearest
from t5like.models import TransformerConfig

_OURS = {
  "relu": "relu",
  **dict.fromkeys(("gelu", "gelu_python"), "gelu_erf"),
  **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu"),
  **dict.fromkeys(("silu", "swish"), "silu"),
}
_THEIRS = {"relu": "relu", "gelu_erf": "gelu", "gelu": "gelu_new", "silu": "silu"}


def from_hf_activation(name: str) -> str:
  if name not in _OURS:
    raise UserError(
      f"activation {name!r} in config.json is unknown", known=", ".join(_OURS), nearest=nearest(name, _OURS)
    )
  return _OURS[name]


def to_hf_activation(name: str) -> str:
  return _THEIRS[name]


def require_output(hf: Mapping, names: Collection[str], output: str) -> None:
  """Refuses a checkpoint whose output projection is neither the embedding nor there: it would be a random one."""
  if hf.get("tie_word_embeddings") is False and output not in names:
    raise UserError(
      f"the checkpoint has no {output}, and its output projection is not the embedding",
      field="tie_word_embeddings = false in config.json",
      try_="a checkpoint with that tensor, or tie_word_embeddings = true if the embedding is meant",
    )


def require_fields(config: TransformerConfig, family: str, **needed: object) -> None:
  """Refuses to export a model that Hugging Face's code for the family could not run."""
  for field, value in needed.items():
    given = getattr(config, field)
    if given != value:
      raise UserError(f"Hugging Face's {family} has no {field} = {given!r}", expected=f"{field} = {value!r}")
