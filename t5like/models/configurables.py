"""Gives gin files the names TransformerConfig, T5, BERT and GPT. The only file of this room that knows gin."""

import gin

from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.gpt import GPT
from t5like.models.t5 import T5

for configurable in (TransformerConfig, T5, BERT, GPT):
  gin.external_configurable(configurable)
