"""Registers TransformerConfig, models and heads with gin. The only file of this package that imports gin."""

import gin

from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.electra import ELECTRA
from t5like.models.gpt import GPT
from t5like.models.heads import HEADS, Probe, WithHead
from t5like.models.recurrent import AWDLSTM, AWDLSTMConfig, ELMo, ELMoConfig
from t5like.models.spanbert import SpanBERT
from t5like.models.t5 import T5
from t5like.models.xlnet import XLNet


def fraction_of(number: int, numerator: int, denominator: int) -> int:
  """Returns a width of another width, at least 1."""
  return max(number * numerator // denominator, 1)


def cluster_sizes(vocab_size: int) -> str:
  """Returns `softmax_clusters` of a vocabulary: 2,500, then 6,000 tokens of T5's 32,128."""
  return f"{fraction_of(vocab_size, 2500, 32128)},{fraction_of(vocab_size, 6000, 32128)}"


gin.external_configurable(fraction_of, "fraction_of")
gin.external_configurable(cluster_sizes, "cluster_sizes")
recurrent = (AWDLSTM, AWDLSTMConfig, ELMo, ELMoConfig)
encoders = (BERT, SpanBERT, ELECTRA, XLNet)
for configurable in (TransformerConfig, T5, *encoders, GPT, *recurrent, WithHead, Probe, *HEADS.values()):
  gin.external_configurable(configurable)
