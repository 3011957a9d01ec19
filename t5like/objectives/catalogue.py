"""All objectives by name: those of the T5 paper's tables, and of other systems."""

from __future__ import annotations

from t5like.errors import UserError, nearest
from t5like.objectives.bart import Bart
from t5like.objectives.base import Objective
from t5like.objectives.denoising import BertStyle, IidDropTokens, IidReplaceSpans, MassStyle
from t5like.objectives.language_modeling import LM, CausalLM, FullLM, PrefixLM
from t5like.objectives.masking import MaskedLM, NgramMaskedLM, SpanMaskedLM
from t5like.objectives.mass import Mass
from t5like.objectives.permutation import PermutationLM
from t5like.objectives.reordering import Deshuffling, PermutedLM
from t5like.objectives.span_corruption import SpanCorruption
from t5like.objectives.ul2 import UL2

# Each has a gin file of the same name in gin/objectives/, and a task `<corpus>_<name>` for each corpus.
CATALOGUE: dict[str, Objective] = {
  # Raffel et al. 2019, Tables 2 and 4 to 7
  "span_corruption": SpanCorruption(),
  "span_corruption_2": SpanCorruption(mean_span_length=2.0),
  "span_corruption_5": SpanCorruption(mean_span_length=5.0),
  "span_corruption_10": SpanCorruption(mean_span_length=10.0),
  "iid_replace_spans": IidReplaceSpans(),
  "iid_replace_spans_10_percent": IidReplaceSpans(noise_density=0.10),
  # Needs more sentinels than T5's vocabulary has, so only the original's variant is possible.
  "iid_replace_spans_25_percent": IidReplaceSpans(noise_density=0.25, variant="t5"),
  "iid_replace_spans_50_percent": IidReplaceSpans(noise_density=0.50, variant="t5"),
  "iid_drop_tokens": IidDropTokens(),
  "bert_style": BertStyle(),
  "mass_style": MassStyle(),
  "deshuffling": Deshuffling(),
  "prefix_lm": PrefixLM(),
  "lm": LM(),
  "full_lm": FullLM(),
  # GPT
  "causal_lm": CausalLM(),
  # BERT and its successors
  "bert_mlm": MaskedLM(),
  "bert_mlm_nsp": MaskedLM(next_sentence=True),
  "roberta": MaskedLM(whole_sentences=True),
  "spanbert": SpanMaskedLM(),
  "albert": NgramMaskedLM(sentence_order=True),
  "electra": MaskedLM(mask_share=0.85, random_share=0.0),
  "xlnet": PermutationLM(),
  # BART: combined, and each noise alone as in its Table 1
  "bart": Bart(),
  "bart_token_masking": Bart(noise="mask", noise_density=0.15, permute_sentences=False),
  "bart_token_deletion": Bart(noise="delete", noise_density=0.15, permute_sentences=False),
  "bart_text_infilling": Bart(permute_sentences=False),
  "bart_sentence_permutation": Bart(noise="none"),
  "bart_document_rotation": Bart(noise="none", permute_sentences=False, rotate=True),
  # other systems
  "mass": Mass(),
  "permuted_lm": PermutedLM(),
  "ul2": UL2(),
}


def register_objective(name: str, objective: Objective) -> Objective:
  """Registers a custom objective. An equal one may be registered again.

  An objective whose class is defined in a notebook replaces the one of an earlier run of its cell.
  """
  if not isinstance(name, str) or not name.isidentifier():
    raise UserError(f"invalid objective name: {name!r}", expected="letters, digits and _")
  if not isinstance(objective, Objective):
    raise UserError(f"not an objective: {objective!r}", expected="an object of a class derived from t5like.Objective")
  known = CATALOGUE.get(name, objective)
  names = {(type(each).__module__, type(each).__qualname__) for each in (known, objective)}
  if known != objective and names != {("__main__", type(objective).__qualname__)}:
    raise UserError(f"objective {name!r} is already registered with different settings", try_="another name")
  CATALOGUE[name] = objective
  return objective


def find_objective(name: str) -> Objective:
  if name not in CATALOGUE:
    raise UserError(f"unknown objective: {name!r}", nearest=nearest(name, CATALOGUE), known=", ".join(CATALOGUE))
  return CATALOGUE[name]


def split_task_name(task: str) -> tuple[str, str | None]:
  """Splits a task name into corpus and objective: c4_span_corruption is ("c4", "span_corruption")."""
  found = [name for name in CATALOGUE if task.endswith(f"_{name}")]
  if not found:
    return task, None
  name = max(found, key=len)
  return task.removesuffix(f"_{name}"), name
