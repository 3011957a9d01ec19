"""Methods that train a fraction: each adds a few parameters to a frozen base, or trains a few of its own.

A `Method` is a `Trainable` (TRAINABLE = @LoRA()) that also transforms the model: `tune` returns the same module with
extensions at named sites (models/tuning.py). Base parameters keep their names, and no field of TransformerConfig is
involved, so that the base's fingerprint does not change.

To add a method, subclass `Method`: `sites` returns extensions, `OWN` matches the names of their parameters.
"""

from t5like.finetuning.methods.adapters import (
  Adapter,
  HoulsbyAdapter,
  ParallelAdapter,
  PfeifferAdapter,
  T5Adapter,
)
from t5like.finetuning.methods.base import Method
from t5like.finetuning.methods.digests import parameter_digest
from t5like.finetuning.methods.few import BitFit, NormsOnly
from t5like.finetuning.methods.lora import LoRA
from t5like.finetuning.methods.prefixes import PrefixTuning
from t5like.finetuning.methods.prompts import PromptTuning
from t5like.finetuning.methods.quantized import QLoRA
from t5like.finetuning.methods.scaling import IA3
from t5like.finetuning.methods.together import Together

# By the name in gin files.
METHODS = {
  method.__name__: method
  for method in (
    LoRA, QLoRA, IA3, BitFit, NormsOnly, HoulsbyAdapter, PfeifferAdapter, ParallelAdapter, T5Adapter, PromptTuning,
    PrefixTuning, Together,
  )
}  # fmt: skip

__all__ = ["METHODS", "Adapter", "Method", "parameter_digest", *METHODS]
