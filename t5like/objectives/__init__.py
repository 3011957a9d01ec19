"""Pre-training objectives, in numpy over rows of tokens, without TensorFlow."""

from t5like.objectives.base import Lengths, Masked, Objective, Pairs, Rows, SpecialTokens
from t5like.objectives.catalogue import CATALOGUE, find_objective, register_objective, split_task_name
from t5like.objectives.ragged import Ragged
from t5like.objectives.randomness import Draws

__all__ = [
  "CATALOGUE",
  "Draws",
  "Lengths",
  "Masked",
  "Objective",
  "Pairs",
  "Ragged",
  "Rows",
  "SpecialTokens",
  "find_objective",
  "register_objective",
  "split_task_name",
]
