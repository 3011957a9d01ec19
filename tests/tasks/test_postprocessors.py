"""Postprocessors equal the t5 library's, on values from a token cache and from seqio's evaluation."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from t5like.tasks import metrics, postprocessors

DATA = Path(__file__).resolve().parents[1] / "data/metrics"
CASES = json.loads((DATA / "postprocessors.json").read_text(encoding="utf-8"))


def as_seqio(value):
  """Converts a field to what seqio's evaluation passes: bytes, numpy scalars, arrays."""
  if isinstance(value, str):
    return value.encode()
  if isinstance(value, list):
    items = [as_seqio(v) if isinstance(v, str) else v for v in value]
    return np.array(items, object if isinstance(items[0], bytes) else np.int32)
  return np.asarray(value)[()]


@pytest.mark.parametrize("name", sorted({case["function"] for case in CASES}))
@pytest.mark.parametrize("form", ["token cache", "seqio"])
def test_equals_the_t5_library(name, form):
  for case in (case for case in CASES if case["function"] == name):
    arguments = dict(case["keywords"])
    if case["example"] is not None:
      example = case["example"]
      if form == "seqio":
        example = {field: as_seqio(value) for field, value in example.items()}
      arguments |= {"example": example, "is_target": case["is_target"]}
    result = getattr(postprocessors, name)(case["text"], **arguments)
    assert as_json(result) == case["expected"], case


def as_json(value):
  return json.loads(json.dumps(value, default=lambda v: v.tolist()))


def test_results_of_numpy_fields_are_plain_python():
  row = {"idx/question": np.int32(3), "idx/passage": np.int32(4), "idx/query": np.int32(5), "label": np.int64(1)}
  row |= {"answers": np.array([b"x"], object), "context": b"x y"}
  for name in ("multirc", "record", "qa", "span_qa", "wsc_simple"):
    json.dumps(getattr(postprocessors, name)("x", example=row, is_target=True))


def test_unanswerable_questions():
  qa = functools.partial(postprocessors.qa_or_none, no_answer="unanswerable")
  answerable, not_answerable = {"answers": ["Rome", ""]}, {"answers": np.array([], object)}
  assert qa("Rome", example=answerable, is_target=True) == ["Rome"]
  assert qa("unanswerable", example=not_answerable, is_target=True) == []
  assert qa(" unanswerable") == "" and qa("Rome") == "Rome"
  targets = [qa("", example=e, is_target=True) for e in (answerable, not_answerable, not_answerable)]
  scores = metrics.squad2(targets, [qa("rome!"), qa("unanswerable"), qa("Rome")])
  assert scores["exact"] == pytest.approx(200 / 3) and scores["NoAns_f1"] == 50 and scores["HasAns_exact"] == 100


def test_tags_are_taken_from_the_example_if_present():
  assert postprocessors.tags("O B-person\tI-person ") == ["O", "B-person", "I-person"]
  assert postprocessors.tags("O", example={"targets": "O"}, is_target=True) == ["O"]
  assert postprocessors.tags("O", example={"tags": np.array([b"B-x"], object)}, is_target=True) == ["B-x"]


def test_labels_must_match_exactly():
  class_id = functools.partial(postprocessors.string_label_to_class_id, label_classes=["no", "not"])
  assert [class_id(text, example={}, is_target=True) for text in ("no", "not", "n", "", "NO")] == [0, 1, -1, -1, -1]
