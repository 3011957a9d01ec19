"""Learning rates by layer, as multipliers of the optimizer's."""

from __future__ import annotations

import dataclasses
import re

from t5like.errors import UserError
from t5like.finetuning.variables import EMBEDDINGS, LAYER, TOP, Variable, Variables
from t5like.training.optimizers.rules import PathRules


@dataclasses.dataclass(frozen=True)
class LayerRates:
  """Multipliers of the learning rate that depend on a variable's height. Encoder and decoder count separately."""

  def multiplier(self, variable: Variable, variables: Variables) -> float:
    raise NotImplementedError

  def rules(self, variables: Variables) -> PathRules:
    """Returns a rule for each module: embeddings, every layer by number, what follows them, output and head."""
    modules = {variable.module: variable for variable in variables.all}
    return PathRules(
      type(self).__name__,
      tuple((f"{re.escape(module)}(/.*)?", self.multiplier(v, variables)) for module, v in modules.items()),
    )


@dataclasses.dataclass(frozen=True)
class LayerwiseDecay(LayerRates):
  """ELECTRA's layer-wise decay (Clark et al. 2020): rate * decay^(L + 2 - depth).

  The depth is 0 for embeddings, 1 to L for the layers, L + 1 for final norms and pooler, L + 2 for output and head: the
  head learns at the full rate, the top layer at decay^2, embeddings at decay^(L + 2). ELECTRA used 0.8 (small and base)
  and 0.9 (large).
  """

  decay: float = 0.8

  def __post_init__(self):
    if not isinstance(self.decay, int | float) or not 0 < self.decay <= 1:
      raise UserError(f"invalid LayerwiseDecay.decay: {self.decay!r}", expected="above 0 and at most 1")

  def multiplier(self, variable: Variable, variables: Variables) -> float:
    if variable.place in (EMBEDDINGS, LAYER):
      return self.decay ** (variables.layers_above(variable) + 2)
    return self.decay if variable.place == TOP else 1.0


@dataclasses.dataclass(frozen=True)
class DiscriminativeRates(LayerRates):
  """ULMFiT's discriminative fine-tuning (Howard and Ruder 2018, section 3.2): each layer at 1 / factor of the next.

  The head is the top layer; then come the layers, final norms and pooler with the last one, and the embeddings.
  """

  factor: float = 2.6

  def __post_init__(self):
    if not isinstance(self.factor, int | float) or not self.factor >= 1:
      raise UserError(f"invalid DiscriminativeRates.factor: {self.factor!r}", expected="1 or more")

  def multiplier(self, variable: Variable, variables: Variables) -> float:
    if variable.place in (EMBEDDINGS, LAYER):
      return self.factor ** -(variables.layers_above(variable) + 1.0)
    return self.factor**-1.0 if variable.place == TOP else 1.0
