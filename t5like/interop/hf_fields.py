"""What the families' config.json have in common: activation names, and fields that theirs cannot say."""

from t5like.errors import UserError, nearest
from t5like.models import TransformerConfig

_OURS = {
  "relu": "relu",
  "gelu": "gelu_erf",
  "gelu_new": "gelu",
  "gelu_pytorch_tanh": "gelu",
  "silu": "silu",
  "swish": "silu",
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


def require_fields(config: TransformerConfig, family: str, **needed: object) -> None:
  """Refuses to export a model that Hugging Face's code for the family could not run."""
  for field, value in needed.items():
    given = getattr(config, field)
    if given != value:
      raise UserError(f"Hugging Face's {family} has no {field} = {given!r}", expected=f"{field} = {value!r}")
