"""Gin names of what trains and of rates by layer."""

import gin

from t5like import finetuning
from t5like.finetuning import methods

for _name in (
  "Everything", "HeadOnly", "FrozenBelow", "Matching", "Frozen", "GradualUnfreezing", "UnfreezeOnPlateau",
  "LayerwiseDecay", "DiscriminativeRates",
):  # fmt: skip
  gin.external_configurable(getattr(finetuning, _name), _name)

for _name in ("LoRA",):
  gin.external_configurable(getattr(methods, _name), _name)
