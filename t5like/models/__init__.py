"""T5, BERT, SpanBERT, ELECTRA, XLNet and GPT on one Transformer core; AWD-LSTM and ELMo. See README.md here."""

from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.electra import ELECTRA
from t5like.models.gpt import GPT
from t5like.models.recurrent import AWDLSTM, ELMo
from t5like.models.spanbert import SpanBERT
from t5like.models.t5 import T5
from t5like.models.xlnet import XLNet

__all__ = ["AWDLSTM", "BERT", "ELECTRA", "ELMo", "GPT", "T5", "SpanBERT", "TransformerConfig", "XLNet"]
