"""Hugging Face's classes with a head: for each, its tensors and our head. The labels are in config.json (id2label).

A class is a line of `CLASSES`; the tensors of the backbone are those of its family.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from t5like.errors import UserError, is_finite, is_number
from t5like.interop import hf_bart
from t5like.interop.decoders import CLASS_NAMES as DECODERS
from t5like.interop.encoders import CLASS_NAMES
from t5like.interop.hf_fields import check_values
from t5like.interop.mapping import Rule
from t5like.models import BERT, GPT, T5
from t5like.models.heads import (
  ClassificationHead,
  MultiLabelHead,
  MultipleChoiceHead,
  RegressionHead,
  SpanHead,
  TaggingHead,
  WithHead,
)

# Our own fields of config.json.
_CHOICES = "num_choices"  # in Hugging Face, it is a fact of the batch
_THRESHOLD = "no_answer_threshold"
_MOST_LABELS = 100_000
# The field problem_type of a sequence classification, by the form of our head.
_PROBLEMS = {
  "classification": "single_label_classification",
  "multi_label": "multi_label_classification",
  "regression": "regression",
}


@dataclasses.dataclass(frozen=True)
class HeadClass:
  """One of Hugging Face's classes.

  family    the start of its name: Bert, GPT2, T5
  form      of our head; "classification" is also the class of a regression
  prefix    before the names of the backbone's tensors
  layers    their linear layers and ours
  settings  of our head
  dropout   the fields of config.json with its rate, in order, and the default
  needs     fields of config.json, which are optional there, and the only value that our head computes
  """

  family: str
  form: str
  prefix: str
  layers: Mapping[str, str]
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  dropout: tuple[str | float, ...] = (0.0,)
  needs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_BERT_DROPOUT = ("classifier_dropout", "hidden_dropout_prob", 0.1)
_T5_DROPOUT = ("classifier_dropout", 0.0)
_POOLER = {"pooling": "pooler"}
_T5_HEAD = {"classification_head.dense": "dense", "classification_head.out_proj": "out"}
_ROBERTA_HEAD = {"classifier.dense": "dense", "classifier.out_proj": "out"}
_CLASSIFIER, _ANSWERS = {"classifier": "out"}, {"qa_outputs": "out"}
CLASSES = {
  "SequenceClassification": [
    HeadClass("Bert", "classification", "bert.", _CLASSIFIER, _POOLER, _BERT_DROPOUT),
    HeadClass("GPT2", "classification", "transformer.", {"score": "out"}, {"pooling": "last", "use_bias": False}),
    HeadClass("T5", "classification", "transformer.", _T5_HEAD, {"pooling": "last", "hidden": "tanh"}, _T5_DROPOUT),
    # Not mBART's: it reads the state at </s>, before the language code, with which its decoder starts, too.
    HeadClass("Bart", "classification", "model.", _T5_HEAD, {"pooling": "last", "hidden": "tanh"}, _T5_DROPOUT),
  ],
  "MultipleChoice": [HeadClass("Bert", "choices", "bert.", _CLASSIFIER, _POOLER, _BERT_DROPOUT)],
  "TokenClassification": [
    HeadClass("Bert", "tagging", "bert.", _CLASSIFIER, dropout=_BERT_DROPOUT),
    HeadClass("GPT2", "tagging", "transformer.", _CLASSIFIER, dropout=("classifier_dropout", "hidden_dropout", 0.1)),
    HeadClass("T5", "tagging", "transformer.", _CLASSIFIER, dropout=_T5_DROPOUT),
  ],
  "QuestionAnswering": [
    HeadClass("Bert", "spans", "bert.", _ANSWERS),
    HeadClass("GPT2", "spans", "transformer.", _ANSWERS),
    HeadClass("T5", "spans", "", _ANSWERS),
    HeadClass("Bart", "spans", "model.", _ANSWERS),
  ],
}


def _add(family: str, prefix: str, rows: tuple, choices: tuple | None, tags: tuple, spans: tuple | None) -> None:
  """Adds the classes of an encoder: for each, its linear layers, settings of our head, and dropout."""
  names = ("SequenceClassification", "MultipleChoice", "TokenClassification", "QuestionAnswering")
  forms = ("classification", "choices", "tagging", "spans")
  for name, form, parts in zip(names, forms, (rows, choices, tags, spans), strict=True):
    if parts is not None:
      CLASSES[name].append(HeadClass(family, form, prefix, *parts))


_CLS_AND_TANH = {"pooling": "cls", "hidden": "tanh"}
for _name in ("Roberta", "XLMRoberta"):
  _add(
    _name,
    "roberta.",
    (_ROBERTA_HEAD, _CLS_AND_TANH, _BERT_DROPOUT),
    (_CLASSIFIER, _POOLER, _BERT_DROPOUT),
    (_CLASSIFIER, {}, _BERT_DROPOUT),
    (_ANSWERS,),
  )
_DISTILBERT_ROWS = (
  {"pre_classifier": "dense", "classifier": "out"},
  {"pooling": "cls", "hidden": "relu", "pooled_dropout_rate": 0.0},
  ("seq_classif_dropout", 0.2),
)
_add(
  "DistilBert",
  "distilbert.",
  _DISTILBERT_ROWS,
  _DISTILBERT_ROWS,
  (_CLASSIFIER, {}, ("dropout", 0.1)),
  (_ANSWERS, {}, ("qa_dropout", 0.1)),
)
_ALBERT_DROPOUT = ("classifier_dropout_prob", 0.1)
_add(
  "Albert",
  "albert.",
  (_CLASSIFIER, _POOLER, _ALBERT_DROPOUT),
  (_CLASSIFIER, _POOLER, _ALBERT_DROPOUT),
  (_CLASSIFIER, {}, _ALBERT_DROPOUT),
  (_ANSWERS,),
)
_add(
  "Electra",
  "electra.",
  (_ROBERTA_HEAD, {"pooling": "cls", "hidden": "gelu_erf"}, _BERT_DROPOUT),
  (
    {"sequence_summary.summary": "dense", "classifier": "out"},
    {"pooling": "cls", "hidden": "gelu_erf", "pooled_dropout_rate": 0.0},
    ("summary_last_dropout", 0.1),
    {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
  ),
  (_CLASSIFIER, {}, _BERT_DROPOUT),
  (_ANSWERS,),
)
_DEBERTA_ROWS = (
  {"pooler.dense": "dense", "classifier": "out"},
  {"pooling": "cls", "hidden": "gelu_erf", "pooled_dropout_rate": 0.0},
  ("cls_dropout", "hidden_dropout_prob", 0.1),
  {"pooler_hidden_act": "gelu"},
)
for _name, _choices in (("Deberta", None), ("DebertaV2", _DEBERTA_ROWS)):
  _add(_name, "deberta.", _DEBERTA_ROWS, _choices, (_CLASSIFIER, {}, ("hidden_dropout_prob", 0.1)), (_ANSWERS,))
_XLNET_ROWS = (
  {"sequence_summary.summary": "dense", "logits_proj": "out"},
  {"pooling": "last", "hidden": "tanh", "pooled_dropout_rate": 0.0},
  ("summary_last_dropout", 0.1),
  {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"},
)
_add("XLNet", "transformer.", _XLNET_ROWS, _XLNET_ROWS, (_CLASSIFIER,), None)
# XLNetForQuestionAnswering, which searches the end of an answer by its start, is another head.
CLASSES["QuestionAnsweringSimple"] = [HeadClass("XLNet", "spans", "transformer.", _ANSWERS)]
_SCORE, _LAST = {"score": "out"}, {"pooling": "last", "use_bias": False}
_TAG_DROPOUT = ("classifier_dropout", "hidden_dropout", 0.1)
CLASSES["SequenceClassification"] += [
  *(HeadClass(_name, "classification", "model.", _SCORE, _LAST) for _name in ("Llama", "Mistral", "Olmo2", "OPT")),
  HeadClass("Bloom", "classification", "transformer.", _SCORE, _LAST),
]
CLASSES["TokenClassification"] += [
  HeadClass("Llama", "tagging", "model.", _SCORE, {}, _TAG_DROPOUT),
  HeadClass("Mistral", "tagging", "model.", _SCORE, {}, _TAG_DROPOUT),
  HeadClass("Bloom", "tagging", "transformer.", _CLASSIFIER, {}, _TAG_DROPOUT),
]
CLASSES["QuestionAnswering"] += [
  HeadClass("Llama", "spans", "transformer.", _ANSWERS),
  HeadClass("Mistral", "spans", "model.", _ANSWERS),
  HeadClass("OPT", "spans", "model.", _ANSWERS),
  HeadClass("Bloom", "spans", "transformer.", _ANSWERS),
]
# By the task_type of peft.
_TASKS = {
  "SEQ_CLS": "SequenceClassification", "TOKEN_CLS": "TokenClassification", "QUESTION_ANS": "QuestionAnswering",
}  # fmt: skip
# Fields of config.json that only a head has; the others are of the backbone, too.
_OWN_DROPOUT = (
  "classifier_dropout",
  "classifier_dropout_prob",
  "summary_last_dropout",
  "cls_dropout",
  "seq_classif_dropout",
  "qa_dropout",
)
_FAMILIES = CLASS_NAMES | hf_bart.CLASS_NAMES | DECODERS | {"gpt2": "GPT2", "t5": "T5", "mt5": "T5", "umt5": "T5"}


def find_head(hf: Mapping) -> HeadClass | None:
  """Returns the class in config.json's `architectures`, or None if it is not one with a head for labels."""
  classes = hf.get("architectures")
  name = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
  kind = name.partition("For")[2]
  family = _FAMILIES.get(hf.get("model_type", ""))
  return next((each for each in CLASSES.get(kind, ()) if each.family == family), None)


def head_from_hf(found: HeadClass, hf: Mapping) -> Any:
  """Returns our head, with the labels of config.json."""
  check_values(hf, "a head", **found.needs)
  rate = _rate(found, hf)
  settings = dict(found.settings) | {"dropout_rate": rate}
  if found.form == "spans":
    return SpanHead(no_answer_threshold=_number(hf.get(_THRESHOLD), _THRESHOLD), **settings)
  if found.form == "choices":
    return MultipleChoiceHead(choices=_whole(hf.get(_CHOICES, 2), _CHOICES), **settings)
  labels, problem = labels_of(hf), hf.get("problem_type")
  if found.form == "tagging":
    return TaggingHead(labels=labels, **settings)
  if problem == "regression" or (problem is None and len(labels) == 1):
    if len(labels) > 1:
      raise UserError("a regression of several numbers is not supported", labels=", ".join(labels[:8]))
    return RegressionHead(**settings)
  if problem not in (None, *_PROBLEMS.values()):
    raise UserError(f"unknown problem_type: {str(problem)[:60]!r}", expected=" or ".join(_PROBLEMS.values()))
  kind = MultiLabelHead if problem == _PROBLEMS["multi_label"] else ClassificationHead
  return kind(labels=labels, **settings)


def labels_of(hf: Mapping) -> tuple[str, ...]:
  """Returns the labels in the order of their numbers; Hugging Face's names where config.json has none."""
  names = hf.get("id2label")
  if names is None:
    return _default_labels(_whole(hf.get("num_labels", hf.get("_num_labels", 2)), "num_labels"))
  try:
    by_number = {int(number): str(name) for number, name in names.items()}
  except (AttributeError, TypeError, ValueError):
    by_number = {}
  if not by_number or sorted(by_number) != list(range(len(by_number))):
    raise UserError("invalid id2label", expected='numbers from 0 and names: {"0": "negative", "1": "positive"}')
  return tuple(by_number[i] for i in range(len(by_number)))


def head_of_task(model: nn.Module, task: str | None, tensors: Mapping[str, Any]) -> Any:
  """Returns the head that peft's `task_type` trains on a model without one, or None, given its tensors."""
  family = _family_name(model)
  found = next((each for each in CLASSES.get(_TASKS.get(task, ""), ()) if each.family == family), None)
  output = next((theirs for theirs, ours in found.layers.items() if ours == "out"), "") if found else ""
  weight = tensors.get(f"{output}.weight")
  return None if weight is None else head_from_hf(found, {"num_labels": len(weight)})


def head_to_hf(model: WithHead) -> tuple[HeadClass, dict[str, Any]]:
  """Returns the class of a model, and the fields of config.json for its head; raises UserError if there is none."""
  head, family = model.head, _family_name(model.backbone)
  form = "classification" if head.form in _PROBLEMS else head.form
  every = ((name, each) for name, classes in CLASSES.items() for each in classes)
  name, found = next(((n, each) for n, each in every if (each.family, each.form) == (family, form)), ("", None))
  if found is None:
    raise UserError(f"Hugging Face has no class for {type(head).__name__} on this {type(model.backbone).__name__}")
  _check_expressible(model, found, f"{family}For{name}")
  fields: dict[str, Any] = {"architectures": [f"{family}For{name}"]}
  if form in ("classification", "tagging"):
    labels = getattr(head, "labels", None) or _default_labels(1)
    fields["id2label"] = {str(number): label for number, label in enumerate(labels)}
    fields["label2id"] = {label: number for number, label in enumerate(labels)}
  if form == "classification":
    fields["problem_type"] = _PROBLEMS[head.form]
  if form == "choices":
    fields[_CHOICES] = head.choices
  if form == "spans" and head.no_answer_threshold is not None:
    fields[_THRESHOLD] = head.no_answer_threshold
  if found.dropout[0] in _OWN_DROPOUT:
    fields[found.dropout[0]] = model.config.dropout_rate if head.dropout_rate is None else head.dropout_rate
  return found, fields


def _family_name(backbone: nn.Module) -> str | None:
  """Returns the start of the names of a model's classes: Bert, GPT2, T5."""
  if isinstance(backbone, (BERT, GPT)):
    family = (CLASS_NAMES | DECODERS | {"gpt2": "GPT2"})[backbone.family]
    return "OpenAIGPT" if family == "GPT2" and backbone.config.norm_position == "post" else family
  if not isinstance(backbone, T5):
    return None
  if backbone.config.positions_per_stack:
    return "Bart" if backbone.config.norm_position == "post" else "MBart"
  return "T5"


def head_rules(found: HeadClass, head: Any) -> list[Rule]:
  """Returns the rules for the head's tensors."""
  rules = []
  for theirs, ours in found.layers.items():
    rules.append(Rule(f"{theirs}.weight", (f"head/{ours}/kernel",), transpose=True))
    if ours != "out" or head.use_bias:
      rules.append(Rule(f"{theirs}.bias", (f"head/{ours}/bias",)))
  return rules


def in_backbone(rule: Rule) -> Rule:
  return dataclasses.replace(rule, ours=tuple(f"backbone/{path}" for path in rule.ours))


def _check_expressible(model: WithHead, found: HeadClass, name: str) -> None:
  """Raises UserError if the head computes something else than Hugging Face's class."""
  head = model.head
  if model.config.embedding_projection == "tokens":
    raise UserError(f"{name} reads projected states: embedding_projection = 'tokens' is not supported")
  expected = {"use_bias": True, "mix_layers": False, "pooling": None, "hidden": None} | dict(found.settings)
  for field, value in expected.items():
    given = getattr(head, field, value)
    if given != value:
      raise UserError(
        f"Hugging Face's {name} does not support {field} = {given!r}",
        expected=f"{field} = {value!r}",
        hint="the backbone alone can be exported from a run without the head",
      )
  if model.layer is not None:
    raise UserError(f"Hugging Face's {name} reads the last layer, not layer {model.layer}")
  stack = "encoder" if found.form == "tagging" else "decoder"
  if model.stack not in (None, stack):
    raise UserError(f"Hugging Face's {name} reads the states of T5's {stack}, not of its {model.stack}")


def _rate(found: HeadClass, hf: Mapping) -> float:
  *fields, default = found.dropout
  rate = next((hf[field] for field in fields if hf.get(field) is not None), default)
  if not is_number(rate) or not 0.0 <= rate < 1.0:
    raise UserError(f"invalid dropout of the head: {str(rate)[:60]}", field=", ".join(fields), expected="0 <= rate < 1")
  return float(rate)


def _whole(value: Any, name: str) -> int:
  if type(value) is not int or not 1 <= value <= _MOST_LABELS:
    raise UserError(f"invalid {name}: {str(value)[:60]}", expected=f"a whole number from 1 to {_MOST_LABELS:,}")
  return value


def _number(value: Any, name: str) -> float | None:
  if value is not None and not is_finite(value):
    raise UserError(f"invalid {name}: {str(value)[:60]}", expected="a number")
  return value


def _default_labels(count: int) -> tuple[str, ...]:
  return tuple(f"LABEL_{i}" for i in range(count))
