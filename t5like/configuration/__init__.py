"""gin at the edge: files, overrides, helpful errors and the operative config."""

from t5like.configuration.loading import build, load, load_data, operative_config, resolved_config

__all__ = ["build", "load", "load_data", "operative_config", "resolved_config"]
