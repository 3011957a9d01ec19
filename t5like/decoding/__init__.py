"""Search over a step function that gives the logits of the next token. Knows no model."""

from t5like.decoding.buckets import bucket
from t5like.decoding.likelihood import log_likelihoods
from t5like.decoding.outputs import Decoded
from t5like.decoding.search import decode
from t5like.decoding.settings import DecodeSettings

__all__ = ["DecodeSettings", "Decoded", "bucket", "decode", "log_likelihoods"]
