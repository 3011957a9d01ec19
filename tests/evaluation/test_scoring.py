"""Scores, baselines and rows of an evaluation, without a model."""

import json

import numpy as np
import pytest

from t5like import evaluation
from t5like.errors import UserError
from t5like.evaluation.scoring import find_function, score_answers

SCORING = {
  "postprocessor": {"function": "t5like.tasks.postprocessors:strip_text", "keywords": {}},
  "metrics": [{"function": "t5like.tasks.metrics:accuracy", "keywords": {}}],
}
TARGETS = ["yes", "no", "no", "no", "yes"]


def run(answers, targets=TARGETS):
  fields = [{"inputs_pretokenized": f"question {i}", "targets_pretokenized": t} for i, t in enumerate(targets)]
  # Two batches of three; the last row fills up.
  inputs = np.array([[0], [1], [2]]), np.array([[3], [4], [3]])
  batches = [(np.array([0, 1, 2]), inputs[0], None, None), (np.array([3, 4, -1]), inputs[1], None, None)]
  return evaluation.evaluate(batches, lambda x, lengths: x, lambda row: answers[row[0]], fields, SCORING)


def test_scores_and_the_majority_baseline():
  result = run([" yes", "no", "maybe", "no ", "no"])
  assert result.scores == {"accuracy": 60.0}
  assert result.majority == {"accuracy": 60.0} and result.majority_answer == "no"
  assert result.summary() == "accuracy 60.00  (always 'no': 60.00)"
  assert result.rows[0] == {"inputs": "question 0", "prediction": "yes", "target": "yes"}
  assert len(result.rows) == 5  # the filling row does not count


def test_free_text_has_no_majority_baseline():
  result = run(list("abcde"), targets=list("abcdx"))
  assert result.scores == {"accuracy": 80.0} and result.majority == {}
  assert result.summary() == "accuracy 80.00"


def test_rows_are_written_as_json_lines(tmp_path):
  run(["yes"] * 5).write(tmp_path / "predictions/x.jsonl")
  rows = [json.loads(line) for line in (tmp_path / "predictions/x.jsonl").read_text().splitlines()]
  assert [row["target"] for row in rows] == TARGETS
  about = json.loads((tmp_path / "predictions/x.scores.json").read_text())  # enough to score them again
  assert about == {"scores": {"accuracy": 40.0}, "metrics": SCORING["metrics"]}
  assert len(list((tmp_path / "predictions").iterdir())) == 2


def test_the_baseline_is_an_answer_not_a_target():
  """SQuAD's targets are lists of answers: the commonest is given as a text."""
  scoring = {
    "postprocessor": {"function": "t5like.tasks.postprocessors:qa_or_none", "keywords": {"no_answer": "none"}},
    "metrics": [{"function": "t5like.tasks.metrics:squad2", "keywords": {}}],
  }
  fields = [{"targets_pretokenized": t, "answers": [t] if t != "none" else []} for t in ("none", "none", "none", "x")]
  result = score_answers({0: "none", 1: "x", 2: "none", 3: "x"}, fields, scoring)
  assert result.scores["exact"] == 75 and result.majority["exact"] == 75 and result.majority_answer == "none"


def test_functions_are_found_by_name_with_their_keywords():
  metric = find_function({"function": "t5like.tasks.metrics:multiclass_f1", "keywords": {"num_classes": 2}})
  assert metric([0, 1], [0, 1]) == {"mean_2class_f1": pytest.approx(100.0)}
  function = find_function({"function": "textwrap:dedent", "keywords": {}}, modules=["textwrap"])  # the user named it
  assert function(" a") == "a"
  with pytest.raises(UserError, match="only run if you name its module"):
    find_function({"function": "textwrap:dedent", "keywords": {}})
  with pytest.raises(UserError, match="cannot be imported"):
    find_function({"function": "my_tasks:f", "keywords": {}}, modules=["my_tasks.glue"])
