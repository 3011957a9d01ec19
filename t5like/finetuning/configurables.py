"""Gin names of what trains and of rates by layer."""

import gin

from t5like import finetuning
from t5like.finetuning.distillation import Distillation
from t5like.finetuning.methods import METHODS

for _name in (
  "Everything", "HeadOnly", "FrozenBelow", "Matching", "Frozen", "GradualUnfreezing", "UnfreezeOnPlateau",
  "LayerwiseDecay", "DiscriminativeRates",
):  # fmt: skip
  gin.external_configurable(getattr(finetuning, _name), _name)

for _name, _method in METHODS.items():
  gin.external_configurable(_method, _name)

gin.external_configurable(Distillation, "Distillation")
