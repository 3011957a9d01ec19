"""What to hide and what to predict: numpy over rows of tokens, no TensorFlow."""

from t5like.objectives.base import Lengths, Objective, SpecialTokens
from t5like.objectives.randomness import Draws
from t5like.objectives.span_corruption import SpanCorruption

__all__ = ["Draws", "Lengths", "Objective", "SpanCorruption", "SpecialTokens"]
