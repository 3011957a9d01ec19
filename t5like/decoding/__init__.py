"""Greedy search, sampling and beam search over a step function. Independent of the model."""

from t5like.decoding.buckets import bucket
from t5like.decoding.likelihood import log_likelihoods
from t5like.decoding.outputs import Decoded
from t5like.decoding.search import decode
from t5like.decoding.settings import DecodeSettings

__all__ = ["DecodeSettings", "Decoded", "bucket", "decode", "log_likelihoods"]
