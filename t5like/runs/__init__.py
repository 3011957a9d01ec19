"""Executes an experiment: prepare, train, evaluate in the loop, report; or forecasts what it takes."""

from t5like.runs.forecasting import plan
from t5like.runs.trainer import TrainingResult
from t5like.runs.training import train

__all__ = ["TrainingResult", "plan", "train"]
