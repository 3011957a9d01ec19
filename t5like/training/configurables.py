"""The names that gin files use for optimizers and schedules."""

import gin

from t5like.training import optimizers, schedules

for _optimizer in ("adafactor", "adamw", "adamw_scaled", "lion", "muon"):
  gin.external_configurable(getattr(optimizers, _optimizer), _optimizer)

for _schedule in (
  "chain", "constant_rate", "cosine", "inverse_square_root", "linear", "slanted_triangular", "warmup", "warmup_cosine",
  "warmup_linear",
):  # fmt: skip
  gin.external_configurable(getattr(schedules, _schedule), _schedule)
