"""From decoded text to what the metrics compare. Plain Python: no TensorFlow, no registry.

Each is `fn(text, example=None, is_target=False)`: called with the target's text and `is_target`, and
with the model's. `example` holds the other fields of the row, as Python values when they come from a
token cache and as numpy values with bytes when seqio's own evaluation calls. The names are those of
the t5 library, and so are the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Example = Mapping[str, Any]


def strip_text(text: str, **unused) -> str:
  """The answer without the white space around it."""
  return text.strip()


def lower_text(string: str, **unused) -> str:
  return string.lower()


def string_to_float(string: str, default: float = -1.0, **unused) -> float:
  """The number that the text says, `default` where it says none (STS-B)."""
  try:
    return float(string)
  except ValueError:
    return default


def string_label_to_class_id(string_label: str, label_classes: Sequence[str], default: int = -1, **unused) -> int:
  """The class whose word the text is, to the letter; `default` where it is none."""
  return list(label_classes).index(string_label) if string_label in label_classes else default


MULTIRC_LABELS = ("False", "True")


def multirc(string_label: str, example: Example | None = None, is_target: bool = False) -> dict[str, Any]:
  """Whether the answer option is said to be right; a target also tells the question it belongs to."""
  value = {"value": string_label_to_class_id(string_label, MULTIRC_LABELS)}
  return value | {"group": _plain(example["idx/question"])} if is_target else value


def record(answer: str, example: Example | None = None, is_target: bool = False) -> dict[str, Any]:
  """The entity; for a target all right entities, and the query they answer."""
  if not is_target:
    return {"value": answer}
  return {"value": _texts(example["answers"]), "group": (_plain(example["idx/passage"]), _plain(example["idx/query"]))}


def qa(answer: str, example: Example | None = None, is_target: bool = False) -> str | list[str]:
  """The answer; for a target all answers that count as right."""
  return _texts(example["answers"]) if is_target else answer


def qa_or_none(
  answer: str, example: Example | None = None, is_target: bool = False, no_answer: str = "unanswerable"
) -> str | list[str]:
  """As `qa`, for `metrics.squad2`: the text `no_answer` becomes '', a target without answers stays empty."""
  if is_target:
    return [text for text in _texts(example["answers"]) if text]
  return "" if answer.strip() == no_answer else answer


def span_qa(answer: str, example: Example | None = None, is_target: bool = False) -> str | dict[str, Any]:
  """The span as said; for a target the answers and the context that its numbers count in."""
  if not is_target:
    return answer
  return {"answers": _texts(example["answers"]), "context": _text(example["context"])}


# Words that do not tell one referent from another (as in the t5 library).
_DETERMINERS = frozenset(
  "a an few her his each every many much my our some that the their these this those which whose your".split()
)


def wsc_simple(prediction: str, example: Example | None = None, is_target: bool = False) -> int:
  """1 where the words of the predicted referent hold those of the row's, or are held by them.

  The target is the row's label: whether that referent is the right one. An empty prediction is -1,
  for it must not agree with a row whose referent is wrong.
  """
  if is_target:
    return _plain(example["label"])
  said, referent = _without_determiners(prediction), _without_determiners(_text(example["targets_pretokenized"]))
  if not said:
    return -1
  if ("'" in said) != ("'" in referent):
    return 0  # "Bob" is not "Bob's hat"
  said_words, referent_words = set(said.split(" ")), set(referent.split(" "))
  return int(said_words <= referent_words or referent_words <= said_words)


def _without_determiners(text: str) -> str:
  return " ".join(word for word in text.strip().lower().split(" ") if word not in _DETERMINERS)


def rank_classification(
  score: Any,
  example: Example | None = None,
  is_target: bool = False,
  passthrough_feature_keys: Sequence[str] | None = None,
) -> Any:
  """What `metrics.rank_classification` takes: the score as it is; for a target index, truth, weight and length."""
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
  """One tag a word, for `metrics.entity_f1`: the text's words, or a target's own `tags` where the example has them."""
  return _texts(example["tags"]) if is_target and example and "tags" in example else text.split()


def _text(value: str | bytes) -> str:
  value = _plain(value)
  return value.decode("utf-8") if isinstance(value, bytes) else value


def _texts(values: Any) -> list[str]:
  return [_text(value) for value in values]


def _plain(value: Any) -> Any:
  return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
