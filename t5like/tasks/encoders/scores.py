"""Postprocessors of an encoder head's outputs, and metrics. Plain Python: no TensorFlow, no registry.

Each postprocessor is `fn(scores, example=None, is_target=False)`: `scores` are the head's outputs for one
example, [classes], or a number for regression; a target is read from the example's fields.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5like.objectives import spans
from t5like.tasks import metrics

Example = Mapping[str, Any]


def class_id(scores: Any, example: Example | None = None, is_target: bool = False) -> int:
  """Returns the class with the highest score."""
  return int(example["labels"]) if is_target else int(np.argmax(scores))


def label_marks(scores: Any, example: Example | None = None, is_target: bool = False) -> list[int]:
  """Returns a 0 or 1 for each label: those with a probability above one half have a positive score."""
  return [int(mark) for mark in example["labels"]] if is_target else [int(score > 0) for score in scores]


def multi_label_f1(targets: Sequence[Sequence[int]], predictions: Sequence[Sequence[int]]) -> dict[str, float]:
  """Computes F1 of all labels together, its mean over labels, and the share of rows with all labels right.

  A label that is neither a target nor predicted has an F1 of 0, as in scikit-learn.
  """
  true, found = np.array(targets, bool), np.array(predictions, bool)
  right, all_marks = np.sum(true & found, axis=0), np.sum(true, axis=0) + np.sum(found, axis=0)
  return {
    "f1_micro": 100 * float(2 * right.sum() / max(all_marks.sum(), 1)),
    "f1_macro": 100 * float(np.mean(2 * right / np.maximum(all_marks, 1))),
    "exact_match": 100 * float(np.mean(np.all(true == found, axis=1))),
  }


def regression(score: Any, example: Example | None = None, is_target: bool = False) -> float:
  return float(example["labels"]) if is_target else float(np.asarray(score).reshape(()))


def nearest_text(cosines: Any, example: Example | None = None, is_target: bool = False) -> int:
  """Returns the number of the text with the highest cosine to the anchor; its positive is number 0."""
  return 0 if is_target else int(np.argmax(cosines))


def grouped_class_id(scores: Any, example: Example | None = None, is_target: bool = False) -> dict[str, Any]:
  """Returns the class; for a target, also the id of its question (MultiRC)."""
  value = {"value": class_id(scores, example, is_target)}
  return value | {"group": _group(example)} if is_target else value


def candidate(scores: Any, example: Example | None = None, is_target: bool = False) -> dict[str, Any]:
  """Returns the log-odds that a candidate answer is right; for a target, whether it is, and its question."""
  if not is_target:
    return {"score": float(scores[1] - scores[0])}
  target = {"group": _group(example), "right": int(example["labels"]) == 1}
  if "candidate" in example:
    target |= {"text": _text(example["candidate"]), "answers": [_text(answer) for answer in example["answers"]]}
  return target


def choice_accuracy(targets: Sequence[Example], predictions: Sequence[Example]) -> dict[str, float]:
  """Computes the share of questions whose most likely candidate is right (COPA)."""
  chosen = _chosen(targets, predictions)
  return {"accuracy": 100 * sum(target["right"] for target in chosen) / len(chosen)}


def choice_squad(targets: Sequence[Example], predictions: Sequence[Example]) -> dict[str, float]:
  """Computes exact match and word F1 of the most likely candidate against the answers (ReCoRD)."""
  chosen = _chosen(targets, predictions)
  return metrics.squad([target["answers"] for target in chosen], [target["text"] for target in chosen])


def _chosen(targets: Sequence[Example], predictions: Sequence[Example]) -> list[Example]:
  """Returns, for each question, the target of the candidate with the highest score; ties go to the first."""
  groups = defaultdict(list)
  for target, prediction in zip(targets, predictions, strict=True):
    groups[target["group"]].append((prediction["score"], target))
  return [max(members, key=lambda member: member[0])[1] for members in groups.values()]


def squad_window(logits: Any, example: Example | None = None, is_target: bool = False) -> dict[str, Any]:
  """Returns the start and end logits of a window, [length, 2], with the offsets that map tokens to text."""
  if is_target:
    return {"id": _text(example["id"]), "answers": [_text(answer) for answer in example["answers"]]}
  count = len(example["offset_starts"])
  logits = np.asarray(logits, np.float64)[:count]
  return {
    "passage": _text(example["second"]),
    "starts": logits[:, 0],
    "ends": logits[:, 1],
    "offsets": np.stack([example["offset_starts"], example["offset_ends"]], axis=1),
    "best_context": np.asarray(example["best_context"]),
  }


def squad_windows(targets: Sequence[Example], predictions: Sequence[Example]) -> dict[str, float]:
  """Computes SQuAD 1.1's exact match and F1 of the best span over all windows of each question."""
  expected, answers = _answers(targets, predictions)
  return metrics.squad(expected, [answer.text for answer in answers])


def squad_v2_windows(
  targets: Sequence[Example], predictions: Sequence[Example], threshold: float = 0.0
) -> dict[str, float]:
  """Computes SQuAD 2.0's scores; there is no answer if [CLS] beats the best span by more than `threshold`.

  `best_exact` and `best_f1` are the scores with the best thresholds, `best_exact_thresh` and `best_f1_thresh`, as the
  official script finds them. Inference uses the latter.
  """
  expected, answers = _answers(targets, predictions)
  margins = [{"text": answer.text, "no_answer_probability": answer.null_score - answer.score} for answer in answers]
  return metrics.squad2(expected, margins, threshold)


def _answers(targets: Sequence[Example], predictions: Sequence[Example]) -> tuple[list[list[str]], list[spans.Answer]]:
  """Returns the accepted answers to every question, and its best span with the score of "no answer"."""
  questions = [target["id"] for target in targets]
  answers = spans.squad_answers(
    *([prediction[part] for prediction in predictions] for part in ("starts", "ends", "offsets", "best_context")),
    questions,
    [prediction["passage"] for prediction in predictions],
  )
  expected = {target["id"]: target["answers"] for target in targets}
  return [expected[question] for question in answers], list(answers.values())


def tags(
  predicted: Any, example: Example | None = None, is_target: bool = False, tag_names: Sequence[str] = ()
) -> list[str]:
  """Returns a tag per word from class numbers, [length], or scores, [length, tags]; O for truncated words."""
  if is_target:
    return [tag_names[int(tag)] for tag in example["tags"]]
  numbers = np.asarray(predicted)
  numbers = numbers if numbers.ndim == 1 else np.argmax(numbers, axis=-1)
  result = ["O"] * len(example["tokens"])
  for place, word in enumerate(example["word_numbers"]):
    if word >= 0:
      result[int(word)] = tag_names[int(numbers[place])]
  return result


def _group(example: Example) -> tuple[int, ...]:
  return tuple(np.asarray(example["group"]).reshape(-1).tolist())


def _text(value: str | bytes) -> str:
  return value.decode("utf-8") if isinstance(value, bytes) else str(value)
