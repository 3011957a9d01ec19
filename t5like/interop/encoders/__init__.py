"""Hugging Face's encoders. A family is a file: a table of names, and config.json in both directions."""

from types import ModuleType

from t5like.interop.encoders import albert, bert, deberta, distilbert, electra, roberta, xlnet

_MODULES = (bert, roberta, distilbert, albert, electra, deberta, xlnet)
# By model_type; also the names of BERT.family.
FAMILIES: dict[str, ModuleType] = {kind: family for family in _MODULES for kind in family.CLASSES}
# The beginning of class names, by model_type.
CLASS_NAMES: dict[str, str] = {kind: name for family in FAMILIES.values() for kind, name in family.CLASSES.items()}

__all__ = ["CLASS_NAMES", "FAMILIES"]
