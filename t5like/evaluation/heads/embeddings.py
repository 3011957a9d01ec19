"""Scores of sentence embeddings: cosines of a row's texts, and retrieval among the second texts of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5like.errors import UserError
from t5like.evaluation.evaluation_set import EvaluationSet
from t5like.evaluation.scoring import Evaluation, find_metrics
from t5like.inference.encodings import nearest_rows, unit
from t5like.tasks.metrics import values as metric_values
from t5like.tasks.metrics.retrieval import DEPTH
from t5like.tasks.metrics.values import Answers

_SHOWN = 10  # documents per query in the predictions file


def cosines(vectors: np.ndarray) -> np.ndarray:
  """Returns the cosines of each row's first text and its others, [rows, texts - 1], of [rows, texts, width]."""
  vectors = unit(vectors)
  return np.einsum("rd,rtd->rt", vectors[:, 0], vectors[:, 1:])


def score_retrieval(vectors: np.ndarray, evaluation_set: EvaluationSet, modules: Sequence[str]) -> Evaluation:
  """Ranks all second texts for each first one, by the cosine of vectors [rows, 2, width].

  Equal texts count once, and a pair that the split has is relevant; the label, if there is one, is its grade. A row
  with an empty first text only adds a document.
  """
  fields = evaluation_set.fields
  queries = _first_rows(fields, "first")
  queries.pop("", None)
  if not queries:
    raise UserError(f"task {evaluation_set.task!r} has no queries", expected="first texts that are not empty")
  documents = _first_rows(fields, "second")
  numbers = {text: number for number, text in enumerate(documents)}
  relevant: dict[str, dict[int, float]] = {query: {} for query in queries}
  for row in fields:
    if row["first"] in relevant and (grade := float(row.get("labels", 1.0))) > 0:
      relevant[row["first"]][numbers[row["second"]]] = grade
  queries = {query: row for query, row in queries.items() if relevant[query]}
  similarities, ranked = nearest_rows(vectors[list(queries.values()), 0], vectors[list(documents.values()), 1], DEPTH)
  targets = [relevant[query] for query in queries]
  scoring = evaluation_set.scoring
  values = metric_values.compute(find_metrics(scoring, modules), Answers(targets, ranked.tolist()))
  texts = list(documents)
  rows = [
    {"inputs": query, "prediction": texts[found[0]], "target": [texts[number] for number in own]}
    | {
      "ranking": [{"text": texts[n], "cosine": round(float(s), 6)} for n, s in zip(found[:_SHOWN], near, strict=False)]
    }
    for query, found, near, own in zip(queries, ranked, similarities, targets, strict=True)
  ]
  return Evaluation(
    values.numbers, {}, rows, metrics=list(scoring["metrics"]), others=values.others, failures=values.failures
  )


def _first_rows(fields: Sequence[Mapping[str, Any]], name: str) -> dict[str, int]:
  """Returns each different text of a field with its first row."""
  found: dict[str, int] = {}
  for number, row in enumerate(fields):
    found.setdefault(row[name], number)
  return found
