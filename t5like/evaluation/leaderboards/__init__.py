"""Leaderboard submissions: GLUE, SuperGLUE and SQuAD."""

from t5like.evaluation.leaderboards.submitting import Submission, submit

__all__ = ["Submission", "submit"]
