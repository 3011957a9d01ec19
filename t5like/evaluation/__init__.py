"""Evaluation of models on tasks: decode or rank, postprocess, score. Used by training and by `t5like eval`.

evaluate(model, "snli", examples=200).scores
"""

from t5like.evaluation.evaluated_model import EvaluatedModel
from t5like.evaluation.evaluation_set import data_identity
from t5like.evaluation.evaluator import Evaluator, make_evaluator
from t5like.evaluation.scoring import Evaluation
from t5like.evaluation.settings import EvaluationSettings
from t5like.evaluation.task_evaluation import evaluate

__all__ = [
  "EvaluatedModel",
  "Evaluation",
  "EvaluationSettings",
  "Evaluator",
  "data_identity",
  "evaluate",
  "make_evaluator",
]
