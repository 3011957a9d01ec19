"""Hugging Face's decoders other than GPT-1 and GPT-2. A family is a file: names, and config.json both ways."""

from types import ModuleType

from t5like.interop.decoders import bloom, llama, opt

_MODULES = (llama, opt, bloom)
# By model_type; also the names of GPT.family.
FAMILIES: dict[str, ModuleType] = {kind: family for family in _MODULES for kind in family.CLASSES}
# The beginning of class names, by model_type.
CLASS_NAMES: dict[str, str] = {kind: name for family in FAMILIES.values() for kind, name in family.CLASSES.items()}

__all__ = ["CLASS_NAMES", "FAMILIES"]
