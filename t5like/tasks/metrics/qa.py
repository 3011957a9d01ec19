"""Question answering metrics: SQuAD 1.1 and 2.0, TriviaQA, CoQA, as in their official scripts."""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5like.tasks.metrics.pairing import check_pairs

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# TriviaQA also treats quotation marks as punctuation, and replaces punctuation by a space.
_SPACES_FOR_PUNCTUATION = str.maketrans({mark: " " for mark in string.punctuation + "‘’´`"})


def normalize_squad(answer: str) -> str:
  """Lowercases, removes punctuation and articles, and collapses whitespace."""
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def normalize_trivia_qa(answer: str) -> str:
  """Like SQuAD's, but punctuation separates words."""
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_SPACES_FOR_PUNCTUATION)).split())


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
  """Computes SQuAD 1.1's exact match and word F1, each against the best of a question's answers."""
  return _best_match(targets, predictions, normalize_squad)


def trivia_qa(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
  """Computes TriviaQA's scores: like SQuAD, with another normalization."""
  return _best_match(targets, predictions, normalize_trivia_qa)


def _best_match(
  targets: Sequence[Sequence[str]], predictions: Sequence[str], normalize: Callable[[str], str]
) -> dict[str, float]:
  check_pairs(targets, predictions)
  exact, overlap = [], []
  for answers, prediction in zip(targets, predictions, strict=True):
    answer_texts, predicted = [normalize(answer) for answer in _answers(answers)], normalize(prediction)
    exact.append(max(text == predicted for text in answer_texts))
    overlap.append(max(word_f1(text.split(), predicted.split()) for text in answer_texts))
  return {"em": 100 * float(np.mean(exact)), "f1": 100 * float(np.mean(overlap))}


def _answers(answers: Sequence[str] | str) -> Sequence[str]:
  """Returns the accepted answers; the empty answer if a question has none."""
  if isinstance(answers, str):
    return [answers]
  return answers if len(answers) else [""]


def word_f1(target: Sequence[str], prediction: Sequence[str]) -> float:
  """Computes F1 of the common words, counted as multisets."""
  common = sum((collections.Counter(target) & collections.Counter(prediction)).values())
  return 2 * common / (len(target) + len(prediction)) if common else 0.0


def word_f1_or_both_empty(target: Sequence[str], prediction: Sequence[str]) -> float:
  """Like `word_f1`, but 1 if both are empty (SQuAD 2.0 and CoQA)."""
  return word_f1(target, prediction) if target or prediction else 1.0


def squad2(
  targets: Sequence[Sequence[str]],
  predictions: Sequence[str | Mapping[str, Any]],
  threshold: float = 1.0,
) -> dict[str, float]:
  """Computes SQuAD 2.0's scores, named as in its official script; a target without answers is unanswerable.

  A prediction is a text, '' for "no answer", or `{"text": ..., "no_answer_probability": ...}`. In the
  latter case a probability above `threshold` counts as "no answer", and the best scores over all
  thresholds are also returned.
  """
  check_pairs(targets, predictions)
  texts = [p["text"] if isinstance(p, Mapping) else p for p in predictions]
  answerable = np.array([len(answers) > 0 for answers in targets])
  exact, overlap = np.array([_scores_or_none(answers, text) for answers, text in zip(targets, texts, strict=True)]).T
  scores = {"exact": exact, "f1": overlap}
  with_probabilities = [isinstance(p, Mapping) and "no_answer_probability" in p for p in predictions]
  best = {}
  if all(with_probabilities):
    none = np.array([float(p["no_answer_probability"]) for p in predictions])
    answered = np.array([bool(text) for text in texts])
    for name, values in scores.items():
      best[f"best_{name}"], best[f"best_{name}_thresh"] = _best_threshold(values, none, answerable, answered)
    scores = {name: np.where(none > threshold, ~answerable, values) for name, values in scores.items()}

  result = {name: 100 * float(values.mean()) for name, values in scores.items()}
  result["total"] = len(targets)
  for part, rows in (("HasAns", answerable), ("NoAns", ~answerable)):
    if rows.any():
      result |= {f"{part}_{name}": 100 * float(values[rows].mean()) for name, values in scores.items()}
      result[f"{part}_total"] = int(rows.sum())
  return result | best


def _scores_or_none(answers: Sequence[str], prediction: str) -> tuple[float, float]:
  """Returns exact match and F1; answers that consist of punctuation and articles are ignored."""
  answer_texts = [text for text in map(normalize_squad, answers) if text] or [""]
  predicted = normalize_squad(prediction)
  overlap = max(word_f1_or_both_empty(text.split(), predicted.split()) for text in answer_texts)
  return float(predicted in answer_texts), overlap


def _best_threshold(
  values: np.ndarray, none: np.ndarray, answerable: np.ndarray, answered: np.ndarray
) -> tuple[float, float]:
  """Returns the best total score over all thresholds, and the lowest threshold that reaches it.

  At the lowest threshold nothing is answered, and all unanswerable questions are correct. As the threshold
  rises, each answered question adds its score, or subtracts a point if it is unanswerable. If answering nothing is
  best, the threshold is 0, as in the official script; below all values if some are negative, as differences of logits.
  """
  order = np.argsort(none, kind="stable")
  change = np.where(answerable, values, np.where(answered, -1.0, 0.0))[order]
  totals = np.cumsum([(~answerable).sum(), *change])
  best = int(np.argmax(totals))
  lowest = 0.0 if none.min() >= 0 else float(none.min()) - 1.0
  return 100 * float(totals[best]) / len(values), float(none[order][best - 1]) if best else lowest


def span_squad(targets: Sequence[Mapping[str, Any]], predictions: Sequence[str]) -> dict[str, float]:
  """Computes SQuAD's scores for answers given as word spans, "start: 3 end: 6".

  Targets hold `answers` and `context`. A malformed span is an empty answer.
  """
  check_pairs(targets, predictions)
  texts = [_span_text(_words(t["context"]), _words(p)) for t, p in zip(targets, predictions, strict=True)]
  return squad([target["answers"] for target in targets], texts)


def _words(text: str) -> list[str]:
  return re.sub(r"\W", " ", text).split()


def _span_text(context: Sequence[str], span: Sequence[str]) -> str:
  try:
    start, end = int(span[1]), int(span[3])
  except (IndexError, ValueError):
    return ""
  return " ".join(context[start : end + 1])


def coqa_f1(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
  """Computes CoQA's word F1 against the best of the answers, with SQuAD's normalization."""
  check_pairs(targets, predictions)
  scores = []
  for answers, prediction in zip(targets, predictions, strict=True):
    words = normalize_squad(prediction).split()
    scores.append(max(word_f1_or_both_empty(normalize_squad(a).split(), words) for a in _answers(answers)))
  return {"f1": 100 * float(np.mean(scores))}
