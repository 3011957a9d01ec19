"""The names that gin files use for optimizers and schedules."""

import gin

from t5like.training import optimizers, schedules

gin.external_configurable(optimizers.adafactor, "adafactor")
gin.external_configurable(optimizers.adamw, "adamw")
gin.external_configurable(schedules.constant_rate, "constant_rate")
gin.external_configurable(schedules.inverse_square_root, "inverse_square_root")
gin.external_configurable(schedules.warmup_linear, "warmup_linear")
