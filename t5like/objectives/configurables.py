"""Registers objectives with gin."""

import gin

from t5like.objectives.bart import Bart
from t5like.objectives.denoising import BertStyle, IidDropTokens, IidReplaceSpans, MassStyle
from t5like.objectives.language_modeling import LM, CausalLM, FullLM, PrefixLM
from t5like.objectives.masking import MaskedLM, NgramMaskedLM, SpanMaskedLM
from t5like.objectives.mass import Mass
from t5like.objectives.permutation import PermutationLM
from t5like.objectives.reordering import Deshuffling, PermutedLM
from t5like.objectives.span_corruption import SpanCorruption
from t5like.objectives.ul2 import UL2

for objective in (
  SpanCorruption, IidReplaceSpans, IidDropTokens, BertStyle, MassStyle, Deshuffling, PermutedLM, PrefixLM, LM, FullLM,
  CausalLM, MaskedLM, SpanMaskedLM, NgramMaskedLM, PermutationLM, Bart, Mass, UL2,
):  # fmt: skip
  gin.external_configurable(objective, objective.name)
