"""Parameters from elsewhere: found in other libraries' files, adapted to a model, or the base of a tuned model."""

from t5like.inference.parameters.adapting import adapt, check_same_labels
from t5like.inference.parameters.bases import (
  BASE_FILE,
  TunedBase,
  find_base,
  read_base,
  store_frozen,
  write_base,
)
from t5like.inference.parameters.finding import find_parameters, refuse_foreign

__all__ = [
  "BASE_FILE",
  "TunedBase",
  "adapt",
  "check_same_labels",
  "find_base",
  "find_parameters",
  "read_base",
  "refuse_foreign",
  "store_frozen",
  "write_base",
]
