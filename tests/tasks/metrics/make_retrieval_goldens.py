"""Writes tests/data/golden/retrieval.json: retrieval scores of scikit-learn and of sentence-transformers.

Not a test; needs scikit-learn, scipy and sentence-transformers:

    python tests/tasks/metrics/make_retrieval_goldens.py

Similarities of 12 queries and 130 documents are random; relevance has grades from 0 to 3. nDCG with grades and mean
average precision are scikit-learn's, the others are those of InformationRetrievalEvaluator; Spearman's is scipy's. Made
with scikit-learn 1.9, sentence-transformers 6.2.
"""

import json
from pathlib import Path

import numpy as np
from scipy import stats
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sklearn.metrics import average_precision_score, ndcg_score

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "retrieval.json"
QUERIES, DOCUMENTS = 12, 130


def main() -> None:
  rng = np.random.default_rng(0)
  relevance = np.where(rng.random((QUERIES, DOCUMENTS)) < 0.05, rng.integers(1, 4, (QUERIES, DOCUMENTS)), 0)
  relevance[np.arange(QUERIES), rng.integers(0, DOCUMENTS, QUERIES)] = 3
  similarities = np.round(rng.random((QUERIES, DOCUMENTS)) + 0.25 * relevance, 6)
  names = [f"d{number:03}" for number in range(DOCUMENTS)]
  evaluator = InformationRetrievalEvaluator(
    queries={f"q{n}": "" for n in range(QUERIES)},
    corpus=dict.fromkeys(names, ""),
    relevant_docs={f"q{n}": {names[d] for d in np.flatnonzero(relevance[n])} for n in range(QUERIES)},
  )
  hits = [
    [{"corpus_id": name, "score": float(score)} for name, score in zip(names, row, strict=True)] for row in similarities
  ]
  theirs = evaluator.compute_metrics(hits)
  scores = {f"accuracy@{k}": v for k, v in theirs["accuracy@k"].items()}
  scores |= {f"recall@{k}": v for k, v in theirs["recall@k"].items()}
  scores |= {"mrr@10": theirs["mrr@k"][10], "map@100": theirs["map@k"][100]}
  precise = [average_precision_score(row > 0, s) for row, s in zip(relevance, similarities, strict=True)]
  known = {
    "similarities": similarities.tolist(),
    "relevance": relevance.tolist(),
    "sentence_transformers": {name: float(value) for name, value in scores.items()},
    "binary_ndcg@10": float(theirs["ndcg@k"][10]),
    "graded_ndcg@10": float(ndcg_score(relevance, similarities, k=10)),
    "average_precision": float(np.mean(precise)),
    "spearman": float(stats.spearmanr(relevance[0], similarities[0])[0]),
  }
  GOLDEN.write_text(json.dumps(known))


if __name__ == "__main__":
  main()
