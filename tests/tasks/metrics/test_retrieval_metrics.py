"""Retrieval scores against scikit-learn and sentence-transformers, and by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.tasks import metrics

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "golden" / "retrieval.json").read_text())


def scores(relevance, depth=100):
  ranked = np.argsort(-np.array(GOLDEN["similarities"]), axis=1, kind="stable")[:, :depth].tolist()
  targets = [{d: float(grade) for d, grade in enumerate(row) if grade} for row in relevance]
  return metrics.retrieval(targets, ranked)


def test_scores_are_those_of_scikit_learn_and_sentence_transformers():
  graded = np.array(GOLDEN["relevance"])
  found, binary = scores(graded), scores(graded > 0)
  for name, value in GOLDEN["sentence_transformers"].items():
    assert found[name] == binary[name] == pytest.approx(100 * value), name
  assert found["ndcg@10"] == pytest.approx(100 * GOLDEN["graded_ndcg@10"])
  assert binary["ndcg@10"] == pytest.approx(100 * GOLDEN["binary_ndcg@10"])
  # scikit-learn reads all 130 documents; with fewer than 100 relevant ones, the places after 100 add to it.
  assert found["map@100"] <= 100 * GOLDEN["average_precision"] + 1e-9
  assert found["map@100"] == pytest.approx(100 * GOLDEN["average_precision"], abs=0.6)
  row = metrics.spearman_corrcoef(GOLDEN["relevance"][0], GOLDEN["similarities"][0])
  assert row["spearman_corrcoef"] == pytest.approx(100 * GOLDEN["spearman"])


def test_scores_by_hand():
  """Two queries: relevant documents at places 2 and 4 of the first, none found of the second."""
  found = metrics.retrieval([{"b": 1.0, "d": 1.0, "x": 1.0}, {"z": 1.0}], [["a", "b", "c", "d"], ["a", "b"]])
  assert (found["accuracy@1"], found["accuracy@3"]) == (0.0, 50.0)
  assert found["recall@10"] == pytest.approx(100 * (2 / 3) / 2)
  assert found["mrr@10"] == pytest.approx(100 * (1 / 2) / 2)
  gains = 1 / np.log2(3) + 1 / np.log2(5)
  assert found["ndcg@10"] == pytest.approx(100 * gains / (1 + 1 / np.log2(3) + 1 / 2) / 2)
  assert found["map@100"] == pytest.approx(100 * ((1 / 2 + 2 / 4) / 3) / 2)


def test_unequal_numbers_are_refused():
  with pytest.raises(UserError):
    metrics.retrieval([{"a": 1.0}], [])
