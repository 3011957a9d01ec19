"""Scores, baselines and rows of an evaluation, without a model."""

import json

import gin
import numpy as np
import pytest

from t5like.errors import UserError
from t5like.evaluation.scoring import Evaluation, check_functions, find_function, is_correct, score_answers

SCORING = {
  "postprocessor": {"function": "t5like.tasks.postprocessors:strip_text", "keywords": {}},
  "metrics": [{"function": "t5like.tasks.metrics:accuracy", "keywords": {}}],
}
TARGETS = ["yes", "no", "no", "no", "yes"]


def run(answers, targets=TARGETS):
  fields = [{"inputs_pretokenized": f"question {i}", "targets_pretokenized": t} for i, t in enumerate(targets)]
  return score_answers(dict(enumerate(answers)), fields, SCORING)


def test_scores_and_the_majority_baseline():
  result = run([" yes", "no", "maybe", "no ", "no"])
  assert result.scores == {"accuracy": 60.0}
  assert result.majority == {"accuracy": 60.0} and result.majority_answer == "no"
  assert result.summary() == "accuracy 60.00  (always 'no': 60.00)"
  assert result.rows[0] == {"inputs": "question 0", "prediction": "yes", "target": "yes"}
  assert len(result.rows) == 5
  assert result.report("quiz", "validation", 1_200, 1) == (
    "  question 0\n    correct: 'yes', target 'yes'\n"
    "quiz (validation, 5 examples) at step 1,200: accuracy 60.00  (always 'no': 60.00)"
  )


def test_free_text_has_no_majority_baseline():
  result = run(list("abcde"), targets=list("abcdx"))
  assert result.scores == {"accuracy": 80.0} and result.majority == {}
  assert result.summary() == "accuracy 80.00"


def test_rows_are_written_as_json_lines(tmp_path):
  run(["yes"] * 5).write(tmp_path / "predictions/x.jsonl")
  rows = [json.loads(line) for line in (tmp_path / "predictions/x.jsonl").read_text().splitlines()]
  assert [row["target"] for row in rows] == TARGETS
  about = json.loads((tmp_path / "predictions/x.scores.json").read_text())  # allows rescoring
  assert about == {"scores": {"accuracy": 40.0}, "metrics": SCORING["metrics"]}
  assert len(list((tmp_path / "predictions").iterdir())) == 2


def test_the_baseline_is_an_answer_not_a_target():
  """SQuAD's targets are lists of answers; the baseline answers with a text."""
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
  function = find_function({"function": "textwrap:dedent", "keywords": {}}, modules=["textwrap"])  # chosen by the user
  assert function(" a") == "a"
  with pytest.raises(UserError, match="needs an explicitly trusted module"):
    find_function({"function": "textwrap:dedent", "keywords": {}})
  with pytest.raises(UserError, match="cannot import"):
    find_function({"function": "my_tasks:f", "keywords": {}}, modules=["my_tasks.glue"])


def test_custom_metrics_and_postprocessors(tmp_path, monkeypatch):
  (tmp_path / "own_scores.py").write_text(
    "def length(text, example, is_target): return (len(text), is_target, example['id'])\n"
    "def together(targets, predictions, add):\n"
    "  return {'sum': sum(t[0] + p[0] for t, p in zip(targets, predictions)) + add}\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  scoring = {
    "postprocessor": {"function": "own_scores:length", "keywords": {}},
    "metrics": [{"function": "own_scores:together", "keywords": {"add": 100}}],
  }
  fields = [{"targets_pretokenized": text, "id": n} for n, text in enumerate(("a", "bb", "a"))]
  result = score_answers({2: "xxx", 0: "yyyy"}, fields, scoring, modules=["own_scores"])
  assert result.scores == {"sum": 1 + 4 + 1 + 3 + 100}
  assert [row["prediction"] for row in result.rows] == [(4, False, 0), (3, False, 2)]  # in order of their numbers
  assert result.rows[1]["target"] == (1, True, 2)
  more = score_answers({1: "x"}, fields, scoring, {1: {"shots": 3}}, ["own_scores"])
  assert more.rows == [{"inputs": None, "prediction": (1, False, 1), "target": (2, True, 1), "shots": 3}]
  with pytest.raises(UserError, match="needs an explicitly trusted module"):
    score_answers({1: "x"}, fields, scoring)
  check_functions(scoring, ["own_scores"])
  with pytest.raises(UserError, match="needs an explicitly trusted module"):
    check_functions({**scoring, "postprocessor": None}, [])


def test_a_trusted_task_may_be_scored_by_functions_of_other_modules(tmp_path, monkeypatch):
  (tmp_path / "scores_elsewhere.py").write_text(
    "def acc(targets, predictions): return {'acc': 1.0}\ndef other(targets, predictions): return {'other': 1.0}\n"
  )
  (tmp_path / "task_elsewhere.py").write_text(
    "import functools, scores_elsewhere, seqio\n"
    "seqio.TaskRegistry.add(\n"
    "  'scored_elsewhere', seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, ['train']),\n"
    "  output_features={'targets': seqio.Feature(seqio.PassThroughVocabulary(9))}, preprocessors=[],\n"
    "  metric_fns=[functools.partial(scores_elsewhere.acc)])\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  find_function({"function": "scores_elsewhere:acc", "keywords": {}}, ["task_elsewhere"])
  for name, modules in (("other", ["task_elsewhere"]), ("acc", [])):
    with pytest.raises(UserError, match="needs an explicitly trusted module"):
      find_function({"function": f"scores_elsewhere:{name}", "keywords": {}}, modules)


def test_values_of_numpy_are_compared_and_written(tmp_path):
  row = {"inputs": "a", "prediction": np.array([1, 2]), "target": [np.int64(1), b"x"]}
  evaluation = Evaluation({}, {}, [row], "", [], {}, {})
  assert "wrong: array([1, 2])" in evaluation.report("t", "s", step=1, shown=1)
  evaluation.write(tmp_path / "rows.jsonl")
  assert json.loads((tmp_path / "rows.jsonl").read_text()) == {"inputs": "a", "prediction": [1, 2], "target": [1, "x"]}
  assert is_correct(np.array([1, 2]), np.array([1, 2])) and is_correct("a", ["b", "a"]) and not is_correct("c", ["a"])
  assert is_correct((1, 2), [(3, 4), (1, 2)])


def test_metrics_may_register_with_gin_after_a_configuration_was_loaded(tmp_path, monkeypatch):
  (tmp_path / "late_scores.py").write_text(
    "import gin\n@gin.configurable\ndef late(targets, scores, scale=2): return {'late': scale * scores.mean()}\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(gin.config, "_CONFIG_IS_LOCKED", True)
  metric = {"function": "late_scores:late", "keywords": {}, "takes": "scores"}
  scoring = {"postprocessor": None, "metrics": [metric]}
  fields = [{"targets_pretokenized": text} for text in "ab"]
  found = score_answers({0: "a", 1: "b"}, fields, scoring, modules=["late_scores"], target_scores=[-1.0, -3.0])
  assert found.scores == {"late": -4.0} and gin.config_is_locked()
  twice = score_answers({0: "a"}, fields, {**scoring, "metrics": [metric, metric]}, None, ["late_scores"], None, [-1.0])
  assert "another metric of the task returns 'late'" in twice.failures["late"]


@pytest.mark.parametrize(("targets", "answer"), [("aab", ""), ("aabb", "a"), ("abbb", "b"), ("abcd", "")])
def test_the_most_common_target_is_a_baseline_if_targets_recur(targets, answer):
  fields = [{"targets_pretokenized": text} for text in targets]
  found = score_answers(dict.fromkeys(range(len(targets)), "a"), fields, {**SCORING, "postprocessor": None})
  assert found.majority_answer == answer
  assert found.majority == ({"accuracy": 100 * targets.count(answer) / len(targets)} if answer else {})


def test_names_that_a_module_imports_are_not_scoring_functions():
  for name in ("t5like.tasks.metrics:np.sum", "t5like.tasks.metrics:__doc__"):
    with pytest.raises(UserError, match="is not a scoring function|cannot import"):
      find_function({"function": name, "keywords": {}})
  for entry in ({"function": "t5like.tasks.metrics.accuracy", "keywords": {}}, {"function": "a:b"}, "a:b", None):
    with pytest.raises(UserError, match="invalid entry for a scoring function"):
      find_function(entry)
  with pytest.raises(UserError, match="needs an explicitly trusted module"):
    find_function({"function": "t5like.tasks.metrics_of_others:f", "keywords": {}})


def test_numbers_of_classes_are_shown_with_their_names():
  """A head's from its labels; those of generated answers with the texts that were read."""
  probabilities = {"negative": 0.75, "positive": 0.25}
  by_head = {"inputs": "a fine film", "prediction": 0, "target": 1, "label": "negative", "probabilities": probabilities}
  generated = {"inputs": "rte: ...", "prediction": -1, "target": 1, "output": "maybe", "expected": "not_entailment"}
  report = Evaluation({}, {}, [by_head, generated]).report("t", "s", step=1, shown=2)
  assert "wrong: 0 ('negative'), target 1 ('positive')" in report
  assert "wrong: -1 ('maybe'), target 1 ('not_entailment')" in report
  scoring = {"postprocessor": {"function": f"{__name__}:number_of", "keywords": {}}, "metrics": []}
  found = score_answers({0: "maybe"}, [{"targets_pretokenized": "no"}], scoring, modules=[__name__]).rows
  assert found == [{"inputs": None, "prediction": -1, "target": 1, "output": "maybe", "expected": "no"}]


def number_of(text, **kwargs):
  return {"yes": 0, "no": 1}.get(text, -1)
