"""Gin names of what trains and of rates by layer."""

import gin

from t5like import finetuning

for _name in (
  "Everything", "HeadOnly", "FrozenBelow", "Matching", "Frozen", "GradualUnfreezing", "UnfreezeOnPlateau",
  "LayerwiseDecay", "DiscriminativeRates",
):  # fmt: skip
  gin.external_configurable(getattr(finetuning, _name), _name)
