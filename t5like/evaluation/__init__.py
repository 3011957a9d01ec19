"""A checkpoint's score on a task: decode, postprocess, compare."""

from t5like.evaluation.generation import Generator
from t5like.evaluation.prediction import Predictor
from t5like.evaluation.ranking import CandidateScorer, Likelihood
from t5like.evaluation.scoring import Evaluation, evaluate

__all__ = ["CandidateScorer", "Evaluation", "Generator", "Likelihood", "Predictor", "evaluate"]
