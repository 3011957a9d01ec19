"""Several methods at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from t5like.errors import UserError
from t5like.finetuning.methods.base import Arrays, Method, Sites
from t5like.finetuning.variables import Variable, Variables


@dataclasses.dataclass(frozen=True)
class Together(Method):
  """Methods that are trained together: [@LoRA(), @PromptTuning()]."""

  methods: Sequence[Method] = ()

  OWN = ""

  def __post_init__(self):
    super().__post_init__()
    if len(self.methods) < 2 or not all(isinstance(method, Method) for method in self.methods):
      raise UserError(f"invalid Together.methods: {self.methods!r}", expected="two or more, as in [@LoRA(), @IA3()]")

  def sites(self, model: nn.Module) -> Sites:
    sites: Sites = {}
    for method in self.methods:
      for site, found in method.sites(model).items():
        if site in sites:
          names = " and ".join(type(each).__name__ for each in self.methods)
          raise UserError(f"{names} both extend {site}", try_="other targets for one of them")
        sites[site] = found
    return sites

  def initial(self, base: Arrays, model: nn.Module, vocabulary: Any) -> dict[str, np.ndarray]:
    return {path: x for method in self.methods for path, x in method.initial(base, model, vocabulary).items()}

  def converted(self, base: Arrays) -> Arrays:
    for method in self.methods:
      base = method.converted(base)
    return base

  def check_rows(self, model: nn.Module, lengths: Mapping[str, int], packed: bool) -> None:
    for method in self.methods:
      method.check_rows(model, lengths, packed)

  def owns(self, variable: Variable) -> bool:
    return any(method.owns(variable) for method in self.methods)

  def title(self, variables: Variables) -> str:
    return ", ".join(method.title(variables) for method in self.methods)
