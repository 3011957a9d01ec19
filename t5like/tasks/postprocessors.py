"""Postprocessors: convert decoded text to the values that metrics compare. Plain Python: no TensorFlow, no registry.

Each is `fn(text, example=None, is_target=False)` and is called once with the target's text and
`is_target=True`, once with the model's text. `example` holds the other fields of the row: Python values
from a token cache, numpy values with bytes from seqio's evaluation. Names and results are those of the
t5 library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Example = Mapping[str, Any]


def strip_text(text: str, **unused) -> str:
  """Strips leading and trailing whitespace."""
  return text.strip()


def lower_text(string: str, **unused) -> str:
  return string.lower()


def string_to_float(string: str, default: float = -1.0, **unused) -> float:
  """Parses the text as a number; returns `default` if it is not one (STS-B)."""
  try:
    return float(string)
  except ValueError:
    return default


def string_label_to_class_id(string_label: str, label_classes: Sequence[str], default: int = -1, **unused) -> int:
  """Returns the id of the class whose label equals the text exactly, or `default`."""
  return list(label_classes).index(string_label) if string_label in label_classes else default


MULTIRC_LABELS = ("False", "True")


def multirc(string_label: str, example: Example | None = None, is_target: bool = False) -> dict[str, Any]:
  """Returns whether the answer option is labeled correct; a target also carries the id of its question."""
  value = {"value": string_label_to_class_id(string_label, MULTIRC_LABELS)}
  return value | {"group": _plain(example["idx/question"])} if is_target else value


def record(answer: str, example: Example | None = None, is_target: bool = False) -> dict[str, Any]:
  """Returns the entity; for a target, all correct entities and the id of the query."""
  if not is_target:
    return {"value": answer}
  return {"value": _texts(example["answers"]), "group": (_plain(example["idx/passage"]), _plain(example["idx/query"]))}


def qa(answer: str, example: Example | None = None, is_target: bool = False) -> str | list[str]:
  """Returns the answer; for a target, all accepted answers."""
  return _texts(example["answers"]) if is_target else answer


def qa_or_none(
  answer: str, example: Example | None = None, is_target: bool = False, no_answer: str = "unanswerable"
) -> str | list[str]:
  """Like `qa`, for `metrics.squad2`: the text `no_answer` becomes '', a target without answers stays empty."""
  if is_target:
    return [text for text in _texts(example["answers"]) if text]
  return "" if answer.strip() == no_answer else answer


def span_qa(answer: str, example: Example | None = None, is_target: bool = False) -> str | dict[str, Any]:
  """Returns the predicted span as text; for a target, the answers and the context that span indices refer to."""
  if not is_target:
    return answer
  return {"answers": _texts(example["answers"]), "context": _text(example["context"])}


# Words that do not distinguish one referent from another (as in the t5 library).
_DETERMINERS = frozenset(
  "a an few her his each every many much my our some that the their these this those which whose your".split()
)


def wsc_simple(prediction: str, example: Example | None = None, is_target: bool = False) -> int:
  """Returns 1 if the words of the predicted referent are a subset or superset of those of the row's referent.

  The target is the row's label: whether its referent is correct. An empty prediction is -1, so that it
  does not match a row whose referent is wrong.
  """
  if is_target:
    return _plain(example["label"])
  predicted, referent = _without_determiners(prediction), _without_determiners(_text(example["targets_pretokenized"]))
  if not predicted:
    return -1
  if ("'" in predicted) != ("'" in referent):
    return 0  # "Bob" is not "Bob's hat"
  predicted_words, referent_words = set(predicted.split(" ")), set(referent.split(" "))
  return int(predicted_words <= referent_words or referent_words <= predicted_words)


def _without_determiners(text: str) -> str:
  return " ".join(word for word in text.strip().lower().split(" ") if word not in _DETERMINERS)


def rank_classification(
  score: Any,
  example: Example | None = None,
  is_target: bool = False,
  passthrough_feature_keys: Sequence[str] | None = None,
) -> Any:
  """Prepares `metrics.rank_classification`: passes scores through; a target is (index, is_correct, weight, length)."""
  if not is_target:
    return score
  parts = (
    tuple(_plain(example["idx"])),
    bool(_plain(example["is_correct"])),
    _plain(example.get("weight", 1.0)),
    len(example["targets"]),
  )
  return parts + tuple(example[key] for key in passthrough_feature_keys or ())


def tags(text: str, example: Example | None = None, is_target: bool = False) -> list[str]:
  """Returns one tag per word, for `metrics.entity_f1`: a target's `tags` field if present, or else the text's words."""
  return _texts(example["tags"]) if is_target and example and "tags" in example else text.split()


def _text(value: str | bytes) -> str:
  value = _plain(value)
  return value.decode("utf-8") if isinstance(value, bytes) else value


def _texts(values: Any) -> list[str]:
  return [_text(value) for value in values]


def _plain(value: Any) -> Any:
  return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
