"""Gin configuration: files, overrides, helpful errors and the operative config."""

from t5like.configuration.checks import names_by_target
from t5like.configuration.loading import (
  NotConfigured,
  build,
  load,
  load_data,
  operative_config,
  read_parameters,
  resolved_config,
)
from t5like.configuration.statements import MacroReference

__all__ = [
  "MacroReference",
  "NotConfigured",
  "build",
  "load",
  "load_data",
  "names_by_target",
  "operative_config",
  "read_parameters",
  "resolved_config",
]
