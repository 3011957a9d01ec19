"""Metric functions as in seqio: their arguments, return values and failures."""

import json
import math

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.evaluation import scoring
from t5like.evaluation.scoring import check_functions, find_metrics, score_answers, try_on_targets
from t5like.tasks.caching.code_closure import _stable_repr
from t5like.tasks.metrics.values import Answers, Metric, as_number, compute

ANSWERS = Answers(["a", "b"], ["a", "c"], target_scores=[-1.0, -3.0], prediction_scores=[-0.5, -2.0])


class Scalar:  # as seqio.metrics.Scalar
  def __init__(self, value):
    self.value = value


class Text:
  def __init__(self, textdata):
    self.textdata = textdata


class Audio:
  audiodata = np.zeros(100)


def test_each_metric_gets_its_arguments():
  seen = {}

  def by_predictions(targets, predictions):
    return {"right": sum(t == p for t, p in zip(targets, predictions, strict=True))}

  def by_scores(targets, scores):
    seen["scores"] = (list(targets), list(scores))
    return {"likelihood": np.mean(scores)}

  def by_aux(targets, predictions, aux_values):
    seen["aux"] = (list(predictions), list(aux_values["scores"]))
    return {"confidence": max(aux_values["scores"])}

  metrics = [Metric("a", by_predictions), Metric("b", by_scores, "scores"), Metric("c", by_aux, "aux_values")]
  values = compute(metrics, ANSWERS)
  assert values.numbers == {"right": 1.0, "likelihood": -2.0, "confidence": -0.5}
  assert seen == {"scores": (["a", "b"], [-1.0, -3.0]), "aux": (["a", "c"], [-0.5, -2.0])}
  assert not values.failures and not values.others


def test_values_of_all_kinds_are_read():
  def metric(targets, predictions):
    return {
      "int": 3, "numpy": np.float32(0.5), "array": np.array([7]), "scalar": Scalar(2.5), "bool": True,
      "group": {"inner": 1.0, "deeper": {"most": Scalar(np.int64(4))}},
      "text": Text("| table |"), "audio": Audio(), "list": [1, 2], "word": "good",
    }  # fmt: skip

  values = compute([Metric("m", metric)], ANSWERS)
  assert values.numbers == {
    "int": 3.0, "numpy": 0.5, "array": 7.0, "scalar": 2.5, "bool": 1.0, "group/inner": 1.0, "group/deeper/most": 4.0,
  }  # fmt: skip
  assert values.others == {"text": "| table |", "audio": "<Audio>", "list": "<list>", "word": "good"}


def test_seqio_metric_values_are_read():
  metrics = pytest.importorskip("seqio.metrics")
  assert as_number(metrics.Scalar(np.float32(0.25))) == 0.25
  assert as_number(metrics.Text("some words")) is None
  found = compute([Metric("m", lambda targets, predictions: {"text": metrics.Text("some words")})], ANSWERS)
  assert found.others == {"text": "some words"}
  shown = scoring.Evaluation({}, {}, [], others={"text": "some words\nand more", "empty": ""}).summary()
  assert shown == "no scores\n  text: some words"


def test_a_failing_metric_is_reported_and_the_others_are_computed():
  def fails(targets, predictions):
    raise KeyError("missing")

  def returns_a_number(targets, predictions):
    return 3.0

  metrics = [Metric("fails", fails), Metric("number", returns_a_number), Metric("good", lambda t, p: {"n": len(t)})]
  values = compute(metrics, ANSWERS)
  assert values.numbers == {"n": 2.0}
  assert values.failures["fails"] == "KeyError: 'missing'"
  assert "expected a dict" in values.failures["number"]


# Stand-ins for functions of a user's module, found under the name of this module.
def count_likely(targets, scores, floor=-2.0):
  return {"likely": sum(score > floor for score in scores), "first": targets[0] == "A"}


def only_for_targets(targets, predictions):
  if targets != predictions:
    raise ValueError("not all right")
  return {"all": 1.0}


def upper(text, example, is_target):
  return text.upper()


ROWS = [{"targets_pretokenized": "a", "inputs_pretokenized": "?"}, {"targets_pretokenized": "b"}]


ENDING = "!"


def shout(text, example, is_target):
  return text.upper() + ENDING


def own(name, **more):
  return {"function": f"{__name__}:{name}", "keywords": more.pop("keywords", {}), **more}


def test_answers_are_also_scored_by_likelihoods():
  entry = own("count_likely", takes="scores", keywords={"floor": -1.5})
  wanted = {"postprocessor": own("upper"), "metrics": [entry]}
  found = score_answers({0: "a", 1: "x"}, ROWS, wanted, modules=[__name__], target_scores=[-1.0, -9.0])
  assert found.scores == {"likely": 1.0, "first": 1.0} and not found.majority
  assert scoring.takes_scores(wanted) and not scoring.takes_scores({"metrics": [own("upper")]})
  assert [metric.takes for metric in find_metrics(wanted, [__name__])] == ["scores"]


def test_without_answers_the_likelihoods_are_shown_and_written(tmp_path):
  wanted = {"postprocessor": own("upper"), "metrics": [own("count_likely", takes="scores", keywords={"floor": -1.5})]}
  found = score_answers({0: None, 1: None}, ROWS, wanted, modules=[__name__], target_scores=[-1.0, math.nan])
  assert found.scores["likely"] == 1.0 and "log-likelihood -1.0" in found.report("mine", "test", 1, 2)
  found.write(tmp_path / "mine.jsonl")
  rows = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
  assert [(row["prediction"], row["target_log_likelihood"]) for row in rows] == [(None, -1.0), (None, None)]
  assert not scoring.takes_predictions(wanted) and scoring.takes_predictions({"metrics": []})
  assert scoring.takes_predictions({"metrics": [*wanted["metrics"], own("upper")]})


def test_failures_are_shown_and_written(tmp_path):
  wanted = {"postprocessor": None, "metrics": [own("only_for_targets"), own("count_likely", takes="scores")]}
  assert not try_on_targets(wanted, ROWS, [__name__]).failures  # correct answers do not trigger it
  found = score_answers({0: "a", 1: "x"}, ROWS, wanted, modules=[__name__], target_scores=[-1.0, -1.0])
  assert found.failures == {"only_for_targets": "ValueError: not all right"} and found.scores["likely"] == 2.0
  assert "the metric only_for_targets failed: ValueError: not all right" in found.summary()
  found.write(tmp_path / "answers.jsonl", "abc")
  about = (tmp_path / "answers.scores.json").read_text()
  assert "not all right" in about and '"data": "abc"' in about


def test_metric_objects_are_rejected():
  with pytest.raises(UserError, match="cannot be evaluated with its metric_objs"):
    check_functions({"postprocessor": None, "metrics": [], "refused": "its metric_objs (PassthroughLegacyMetric)"}, [])


def test_the_code_of_the_users_functions_is_part_of_an_evaluations_identity(monkeypatch):
  ours = {"postprocessor": None, "metrics": [{"function": "t5like.tasks.metrics:accuracy", "keywords": {}}]}
  assert scoring.scoring_identity(ours, []) == ""
  users = {"postprocessor": own("shout"), "metrics": []}
  before = scoring.scoring_identity(users, [__name__])
  assert before == scoring.scoring_identity(users, [__name__])
  monkeypatch.setitem(globals(), "ENDING", "?")  # a constant that it reads
  changed = scoring.scoring_identity(users, [__name__])
  monkeypatch.setitem(globals(), "shout", upper)
  assert len({before, changed, scoring.scoring_identity(users, [__name__])}) == 3


def test_constants_in_sets_have_an_order():
  """That of strings differs from process to process: an unchanged task would look edited."""
  words = [f"word{n}" for n in range(50)]
  assert _stable_repr(set(words)) == _stable_repr(set(reversed(words))) == _stable_repr(frozenset(sorted(words)))
  assert _stable_repr(({"b", "a"}, [{"c"}])) == "({'a', 'b'}, [{'c'}])"
  for value in ((1,), (), [1, (2, "x")], {"a": [1], "b": {}}, None, 1.5):
    assert _stable_repr(value) == repr(value)
