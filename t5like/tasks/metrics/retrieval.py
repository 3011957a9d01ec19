"""Metrics of ranked documents."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from t5like.tasks.metrics.pairing import check_pairs

_CUTOFFS = (1, 3, 5, 10)
DEPTH = 100  # documents per query that the metrics read


def retrieval(
  targets: Sequence[Mapping[Hashable, float]], predictions: Sequence[Sequence[Hashable]]
) -> dict[str, float]:
  """Computes accuracy@k, recall@k, MRR@10, nDCG@10 and MAP@100, means over queries, from 0 to 100.

  targets: the relevant documents of each query, with their relevance: 1, or grades, which nDCG uses.
  predictions: documents, best first; the metrics read the first 100.
  """
  check_pairs(targets, predictions)
  rows = [_query_scores(relevant, list(ranked)[:DEPTH]) for relevant, ranked in zip(targets, predictions, strict=True)]
  return {name: 100 * sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _query_scores(relevant: Mapping[Hashable, float], ranked: Sequence[Hashable]) -> dict[str, float]:
  hits = [document in relevant for document in ranked]
  scores = {}
  for k in _CUTOFFS:
    scores[f"accuracy@{k}"] = float(any(hits[:k]))
  for k in _CUTOFFS:
    scores[f"recall@{k}"] = sum(hits[:k]) / len(relevant)
  scores["mrr@10"] = next((1 / place for place, hit in enumerate(hits[:10], 1) if hit), 0.0)
  ideal = _gain(sorted(relevant.values(), reverse=True)[:10])
  scores["ndcg@10"] = _gain([relevant.get(document, 0.0) for document in ranked[:10]]) / ideal if ideal else 0.0
  precisions = [sum(hits[:place]) / place for place, hit in enumerate(hits, 1) if hit]
  scores["map@100"] = sum(precisions) / min(len(relevant), DEPTH)
  return scores


def _gain(grades: Sequence[float]) -> float:
  """Returns the discounted cumulative gain (Järvelin and Kekäläinen 2002)."""
  return sum(grade / math.log2(place + 1) for place, grade in enumerate(grades, 1))
