"""A checkpoint's score on a task: decode, postprocess, compare."""

from t5like.evaluation.prediction import Predictor
from t5like.evaluation.scoring import Evaluation, evaluate
from t5like.inference.generation import Generator
from t5like.inference.ranking import CandidateScorer, Likelihood

__all__ = ["CandidateScorer", "Evaluation", "Generator", "Likelihood", "Predictor", "evaluate"]
