"""Search over a step function that gives the logits of the next token. Knows no model."""

from t5like.decoding.greedy import greedy

__all__ = ["greedy"]
