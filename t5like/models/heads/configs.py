"""Changes the TransformerConfig of a model, with or without a head."""

import dataclasses
from typing import Any

import flax.linen as nn

from t5like.models.heads.with_head import WithHead


def with_config(model: nn.Module, **changes: Any) -> nn.Module:
  """Returns the model with changed fields of its TransformerConfig, that of the backbone if it has a head."""
  if isinstance(model, WithHead):
    return model.clone(backbone=with_config(model.backbone, **changes))
  return model.clone(config=dataclasses.replace(model.config, **changes))
