"""Registers TransformerConfig, models and heads with gin. The only file of this package that imports gin."""

import gin

from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.electra import ELECTRA
from t5like.models.gpt import GPT
from t5like.models.heads import HEADS, Probe, WithHead
from t5like.models.spanbert import SpanBERT
from t5like.models.t5 import T5

for configurable in (TransformerConfig, T5, BERT, SpanBERT, ELECTRA, GPT, WithHead, Probe, *HEADS.values()):
  gin.external_configurable(configurable)
