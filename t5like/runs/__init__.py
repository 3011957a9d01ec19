"""Executes an experiment: prepare, train, evaluate in the loop, report."""

from t5like.runs.trainer import TrainingResult
from t5like.runs.training import train

__all__ = ["TrainingResult", "train"]
