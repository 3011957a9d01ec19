"""Checkpoints: saving with Orbax, integrity checks, retention and restoring."""

from t5like.training.checkpoints.folders import (
  check_fingerprint,
  checkpoint_steps,
  find_checkpoint,
  has_training_state,
  read_fingerprint,
)
from t5like.training.checkpoints.integrity import newest_intact
from t5like.training.checkpoints.restoring import (
  Restore,
  check_restorable,
  find_episode,
  restore_state,
)
from t5like.training.checkpoints.retention import CheckpointRetention
from t5like.training.checkpoints.saving import (
  Checkpoints,
  SaveError,
  best_step,
  check_disk_space,
  checkpoint_bytes,
  load_parameters,
  save_parameters,
)

__all__ = [
  "Checkpoints",
  "CheckpointRetention",
  "Restore",
  "SaveError",
  "best_step",
  "check_fingerprint",
  "check_restorable",
  "check_disk_space",
  "checkpoint_bytes",
  "checkpoint_steps",
  "find_checkpoint",
  "find_episode",
  "has_training_state",
  "load_parameters",
  "newest_intact",
  "read_fingerprint",
  "restore_state",
  "save_parameters",
]
