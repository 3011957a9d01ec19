"""Runs an experiment (prepare, train, evaluate, report) or forecasts its cost."""

from t5like.runs.forecast.forecasting import plan
from t5like.runs.together import train_together
from t5like.runs.trainer import TrainingResult
from t5like.runs.training import train

__all__ = ["TrainingResult", "plan", "train", "train_together"]
