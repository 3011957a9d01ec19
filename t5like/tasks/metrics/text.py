"""Metrics of free text: BLEU for translation, ROUGE for summarization, word edit distance."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5like.tasks.metrics.pairing import check_pairs

_BOOTSTRAP_SAMPLES = 1000
_BOOTSTRAP_SEED = 123  # as in rouge-score's test, whose published values we reproduce


def bleu(
  targets: Sequence[str] | Sequence[Sequence[str]], predictions: Sequence[str], tokenizer: str = "intl"
) -> dict[str, float]:
  """Computes corpus BLEU with sacrebleu; a target may be a list of reference translations."""
  import sacrebleu

  check_pairs(targets, predictions)
  references = [[target] if isinstance(target, str) else list(target) for target in targets]
  streams = [list(stream) for stream in itertools.zip_longest(*references)]  # sacrebleu expects [references, rows]
  score = sacrebleu.corpus_bleu(
    list(predictions), streams, smooth_method="exp", smooth_value=0.0, tokenize=tokenizer, use_effective_order=False
  )
  return {"bleu": float(score.score)}


def rouge(
  targets: Sequence[str],
  predictions: Sequence[str],
  score_keys: Sequence[str] = ("rouge1", "rouge2", "rougeLsum"),
  **scorer_options: Any,
) -> dict[str, float]:
  """Computes ROUGE F-measures with rouge-score: the median of 1,000 bootstrap means, as in the t5 library.

  The library resamples with numpy's global generator; here the seed is fixed, so that scores are
  reproducible. `scorer_options` are RougeScorer's, such as use_stemmer.
  """
  from rouge_score import rouge_scorer

  check_pairs(targets, predictions)
  scorer = rouge_scorer.RougeScorer(list(score_keys), **scorer_options)
  scores = [
    scorer.score(target=_one_sentence_per_line(target), prediction=_one_sentence_per_line(prediction))
    for target, prediction in zip(targets, predictions, strict=True)
  ]
  generator = np.random.RandomState(_BOOTSTRAP_SEED)
  return {
    key: 100 * _bootstrap_median(np.array([score[key].fmeasure for score in scores]), generator) for key in score_keys
  }


def _one_sentence_per_line(summary: str) -> str:
  """Splits sentences for rougeLsum, which compares lines; in CNN/DailyMail " . " ends a sentence."""
  return summary.replace(" . ", " .\n")


def _bootstrap_median(values: np.ndarray, generator: np.random.RandomState) -> float:
  means = [values[generator.choice(len(values), size=len(values))].mean() for _ in range(_BOOTSTRAP_SAMPLES)]
  return float(np.percentile(means, 50))


def edit_distance(targets: Sequence[str], predictions: Sequence[str], lower: bool = True) -> dict[str, float]:
  """Computes the word edit distance from predictions to targets; counts, not percent."""
  check_pairs(targets, predictions)
  distances = []
  for target, prediction in zip(targets, predictions, strict=True):
    pair = (target.lower(), prediction.lower()) if lower else (target, prediction)
    distances.append(_levenshtein(*(re.split(r"\W", text) for text in pair)))
  return {
    "min_edit": min(distances),
    "max_edit": max(distances),
    "mean_edit": float(np.mean(distances)),
    "median_edit": float(np.median(distances)),
    "sum_edit": sum(distances),
  }


def _levenshtein(first: Sequence[str], second: Sequence[str]) -> int:
  row = list(range(len(second) + 1))
  for i, word in enumerate(first, 1):
    diagonal, row[0] = row[0], i
    for j, other in enumerate(second, 1):
      diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
  return row[-1]
