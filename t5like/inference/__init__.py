"""Inference: generate, score, rank, embed, fill masks, classify, tag and answer with a loaded model.

model = load("runs/demo")
model.generate("a question", beams=4).text
"""

from t5like.inference.generation import Generator
from t5like.inference.model import Model, load
from t5like.inference.ranking import CandidateScorer, Likelihood
from t5like.inference.results import Candidate, Choice, Filled, Label, Output, SpanAnswer, Tag

__all__ = [
  "Candidate",
  "CandidateScorer",
  "Choice",
  "Filled",
  "Generator",
  "Label",
  "Likelihood",
  "Model",
  "Output",
  "SpanAnswer",
  "Tag",
  "load",
]
