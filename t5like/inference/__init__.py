"""Inference: generate, score, rank, embed, fill masks, classify, tag, answer and look inside with a loaded model.

model = load("runs/demo")
model.generate("a question", beams=4).text
"""

from t5like.inference.generation import Generator
from t5like.inference.model import Model, load
from t5like.inference.ranking import CandidateScorer, Likelihood
from t5like.inference.results import (
  Attention,
  Candidate,
  Choice,
  Filled,
  HiddenStates,
  Label,
  Output,
  SpanAnswer,
  Tag,
  WordNeighbor,
)

__all__ = [
  "Attention",
  "Candidate",
  "CandidateScorer",
  "Choice",
  "Filled",
  "Generator",
  "HiddenStates",
  "Label",
  "Likelihood",
  "Model",
  "Output",
  "SpanAnswer",
  "Tag",
  "WordNeighbor",
  "load",
]
