"""Gin names of optimizers, schedules, checkpoint retention, restoring and early stopping."""

import gin

from t5like.training import optimizers
from t5like.training.checkpoints import CheckpointRetention, Restore
from t5like.training.guards.early_stopping import EarlyStopping
from t5like.training.optimizers import schedules

for _optimizer in ("adafactor", "adamw", "adamw_scaled", "lamb", "lion", "muon", "custom_optimizer"):
  gin.external_configurable(getattr(optimizers, _optimizer), _optimizer)

for _schedule in (
  "chain", "constant_rate", "cosine", "inverse_square_root", "linear", "slanted_triangular", "warmup", "warmup_cosine",
  "warmup_linear",
):  # fmt: skip
  gin.external_configurable(getattr(schedules, _schedule), _schedule)

gin.external_configurable(CheckpointRetention, "KEEP")
gin.external_configurable(Restore, "RESTORE")
gin.external_configurable(EarlyStopping, "EARLY_STOPPING")
