"""Recurrent language models: AWD-LSTM (ULMFiT) and ELMo. Layers run as a `lax.scan` over positions."""

from t5like.models.recurrent.awd_lstm import AWDLSTM
from t5like.models.recurrent.config import AWDLSTMConfig, ELMoConfig, RecurrentConfig
from t5like.models.recurrent.elmo import CharacterTable, ELMo

__all__ = ["AWDLSTM", "AWDLSTMConfig", "CharacterTable", "ELMo", "ELMoConfig", "RecurrentConfig"]
