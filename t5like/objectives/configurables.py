"""The names that gin files use for objectives."""

import gin

from t5like.objectives.span_corruption import SpanCorruption

gin.external_configurable(SpanCorruption, "span_corruption")
