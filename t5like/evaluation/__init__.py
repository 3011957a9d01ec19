"""A model's score on a task: decode or rank, postprocess, compare. One evaluator for the training loop and the command.

evaluate(model, "snli", examples=200).scores
"""

from t5like.evaluation.evaluated_model import EvaluatedModel
from t5like.evaluation.evaluation_set import EvaluationSet, data_identity
from t5like.evaluation.evaluator import Evaluator
from t5like.evaluation.scoring import Evaluation
from t5like.evaluation.settings import EvaluationSettings, TextLossSettings
from t5like.evaluation.task_evaluation import evaluate

__all__ = [
  "EvaluatedModel",
  "Evaluation",
  "EvaluationSet",
  "EvaluationSettings",
  "Evaluator",
  "TextLossSettings",
  "data_identity",
  "evaluate",
]
