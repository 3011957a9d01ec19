"""Scores of answers to questions: SQuAD 1.1 and 2.0, TriviaQA, CoQA, as their official scripts give them."""

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
# TriviaQA takes quotation marks for punctuation too, and leaves a gap where any stood.
_SPACES_FOR_PUNCTUATION = str.maketrans({mark: " " for mark in string.punctuation + "‘’´`"})


def normalize_squad(answer: str) -> str:
  """Lower case, without punctuation and articles, single spaces."""
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def normalize_trivia_qa(answer: str) -> str:
  """As SQuAD's, but a punctuation mark parts words."""
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_SPACES_FOR_PUNCTUATION)).split())


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
  """SQuAD 1.1: exact match and word F1, each against the best of a question's answers."""
  return _best_match(targets, predictions, normalize_squad)


def trivia_qa(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
  """TriviaQA: as SQuAD, under its own normalization."""
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
  """A question without answers is answered rightly by nothing."""
  if isinstance(answers, str):
    return [answers]
  return answers if len(answers) else [""]


def word_f1(target: Sequence[str], prediction: Sequence[str]) -> float:
  """F1 of the words in common, each as often as both have it."""
  common = sum((collections.Counter(target) & collections.Counter(prediction)).values())
  return 2 * common / (len(target) + len(prediction)) if common else 0.0


def word_f1_or_both_empty(target: Sequence[str], prediction: Sequence[str]) -> float:
  """SQuAD 2.0 and CoQA: saying nothing is right where nothing is to be said."""
  return word_f1(target, prediction) if target or prediction else 1.0


def squad2(
  targets: Sequence[Sequence[str]],
  predictions: Sequence[str | Mapping[str, Any]],
  threshold: float = 1.0,
) -> dict[str, float]:
  """SQuAD 2.0, under the names of its official script; a target without answers is an unanswerable question.

  A prediction is a text, '' for "no answer", or `{"text": ..., "no_answer_probability": ...}`: then
  an answer whose probability of there being none is above `threshold` counts as none, and the best
  scores that any threshold could give are reported too.
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
    said = np.array([bool(text) for text in texts])
    for name, values in scores.items():
      best[f"best_{name}"], best[f"best_{name}_thresh"] = _best_threshold(values, none, answerable, said)
    scores = {name: np.where(none > threshold, ~answerable, values) for name, values in scores.items()}

  result = {name: 100 * float(values.mean()) for name, values in scores.items()}
  result["total"] = len(targets)
  for part, rows in (("HasAns", answerable), ("NoAns", ~answerable)):
    if rows.any():
      result |= {f"{part}_{name}": 100 * float(values[rows].mean()) for name, values in scores.items()}
      result[f"{part}_total"] = int(rows.sum())
  return result | best


def _scores_or_none(answers: Sequence[str], prediction: str) -> tuple[float, float]:
  """Exact match and F1; answers of punctuation and articles alone do not count as answers."""
  answer_texts = [text for text in map(normalize_squad, answers) if text] or [""]
  predicted = normalize_squad(prediction)
  overlap = max(word_f1_or_both_empty(text.split(), predicted.split()) for text in answer_texts)
  return float(predicted in answer_texts), overlap


def _best_threshold(
  values: np.ndarray, none: np.ndarray, answerable: np.ndarray, said: np.ndarray
) -> tuple[float, float]:
  """The best total score over all thresholds, and the lowest threshold that gives it.

  Below every probability nothing is answered: all unanswerable questions are right. Each question
  that is answered as the threshold rises adds its score, or takes away a point if it has no answer.
  """
  order = np.argsort(none, kind="stable")
  change = np.where(answerable, values, np.where(said, -1.0, 0.0))[order]
  totals = np.cumsum([(~answerable).sum(), *change])
  best = int(np.argmax(totals))
  return 100 * float(totals[best]) / len(values), float(none[order][best - 1]) if best else 0.0


def span_squad(targets: Sequence[Mapping[str, Any]], predictions: Sequence[str]) -> dict[str, float]:
  """SQuAD where an answer is said by its words' numbers, "start: 3 end: 6".

  Targets hold `answers` and `context`. What is not such a span is an empty answer.
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
  """CoQA: word F1 against the best of the answers, SQuAD's normalization."""
  check_pairs(targets, predictions)
  scores = []
  for answers, prediction in zip(targets, predictions, strict=True):
    words = normalize_squad(prediction).split()
    scores.append(max(word_f1_or_both_empty(normalize_squad(a).split(), words) for a in _answers(answers)))
  return {"f1": 100 * float(np.mean(scores))}
