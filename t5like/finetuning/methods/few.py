"""Methods that train a few of the base's own parameters: biases (BitFit) or norms. Checkpoints hold only those."""

from __future__ import annotations

import dataclasses

import flax.linen as nn

from t5like.errors import UserError
from t5like.finetuning.methods.base import Method, Sites
from t5like.finetuning.variables import HEAD, Variable, Variables

NORMS = r"(.*_norm|.*/norm|norm)/(scale|bias)"


@dataclasses.dataclass(frozen=True)
class BitFit(Method):
  """Trains only the biases, those of norms included (Ben Zaken et al. 2021); 0.08% of BERT."""

  OWN = "bias"

  def sites(self, model: nn.Module) -> Sites:
    if not model.config.use_bias:
      raise UserError(
        "BitFit trains biases, and this model has none: T5's dense layers and norms have no bias",
        try_="its norms: --gin.TRAINABLE=@NormsOnly(), or --gin.TRAINABLE=@IA3()",
      )
    return {}

  def owns(self, variable: Variable) -> bool:
    # The bias of BERT's output belongs to the vocabulary, and training a head trains all of it.
    return super().owns(variable) and variable.place != HEAD

  def title(self, variables: Variables) -> str:
    return f"BitFit: {sum(map(self.owns, variables.all))} biases"


@dataclasses.dataclass(frozen=True)
class NormsOnly(Method):
  """Trains only the scales (and biases) of the norms."""

  OWN = NORMS

  def sites(self, model: nn.Module) -> Sites:
    return {}

  def title(self, variables: Variables) -> str:
    return f"{sum(map(self.owns, variables.all))} parameters of norms"
