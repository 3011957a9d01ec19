"""Metrics: equal to the libraries that define them, published values, and robustness to invalid answers."""

import functools
import json
from pathlib import Path

import pytest

from t5like.errors import UserError
from t5like.tasks import metrics

DATA = Path(__file__).resolve().parents[2] / "data/metrics"
CASES = json.loads((DATA / "metrics.json").read_text(encoding="utf-8"))


def metric_of(case):
  function = getattr(metrics, case["metric"])
  if "factory" in case:
    settings = case["factory"]
    inner = {"metric_fn": getattr(metrics, settings["metric_fn"])} if "metric_fn" in settings else {}
    function = function(**(settings | inner))
  return functools.partial(function, **case.get("keywords", {}))


@pytest.mark.parametrize("name", sorted({case["metric"] for case in CASES}))
def test_equals_the_original_libraries(name):
  cases = [case for case in CASES if case["metric"] == name]
  for case in cases:
    scores = metric_of(case)(case["targets"], case["predictions"])
    assert scores == pytest.approx(case["expected"], abs=1e-6), case
  assert any(score != 0 for case in cases for score in case["expected"].values())


def test_published_values():
  moose = [["big moose", "hippo"], ["correct1"], ["correct2.1", "correct2.2"], ["a", "b"]]
  predictions = ["‘a big  Moose!‘", "wrong", "correct2.2", "c"]
  assert metrics.squad(moose, predictions) == pytest.approx({"em": 25, "f1": 35})
  assert metrics.trivia_qa(moose, predictions) == pytest.approx({"em": 50, "f1": 50})
  assert metrics.mean_multiclass_f1(3)([0, 1, 1, 2], [0, 0, 2, 2]) == pytest.approx({"mean_3class_f1": 44.44444444})
  assert metrics.spearman_corrcoef([0, 2, 1], [0, 1, 2]) == pytest.approx({"spearman_corrcoef": 50})
  assert metrics.pearson_corrcoef([0, 2], [0, 1]) == pytest.approx({"pearson_corrcoef": 100})
  assert metrics.f1_score_with_invalid([0, 1, 1, 0], [0, 1, 2, 2]) == pytest.approx({"f1": 50})
  assert metrics.accuracy([0, 0, 2, 1], [0, 1, 2, 1]) == {"accuracy": 75}
  assert metrics.matthews_corrcoef([0, 0, 2, 1], [0, 1, 2, 1]) == pytest.approx({"matthews_corrcoef": 70})
  assert metrics.auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == pytest.approx({"auc-roc": 0.75, "auc-pr": 5 / 6})


def test_squad2_answers_up_to_the_threshold():
  predictions = [{"text": "Rome", "no_answer_probability": 0.5}, {"text": "Rome", "no_answer_probability": 0.6}]
  scores = metrics.squad2([["Rome"], []], predictions, threshold=0.5)  # the first is answered, the second is not
  assert scores["exact"] == 100 and scores["best_exact"] == 100 and scores["best_exact_thresh"] == 0.5
  assert metrics.squad2([["Rome"], []], predictions)["exact"] == 50
  # An unanswerable question without an answer is right above its threshold, too.
  predictions = [{"text": "", "no_answer_probability": 0.5}, {"text": "Rome", "no_answer_probability": 0.6}]
  assert metrics.squad2([[], ["Rome"]], predictions)["best_exact"] == 100
  # Differences of logits may be negative: nothing is answered below all of them.
  margins = [{"text": "Rome", "no_answer_probability": value} for value in (-1.0, -3.0)]
  scores = metrics.squad2([[], []], margins)
  assert (scores["best_exact"], scores["best_exact_thresh"]) == (100, -4)
  assert metrics.squad2([[], []], margins, scores["best_exact_thresh"])["exact"] == 100


def test_conlleval_by_hand():
  targets = [["B-PER", "I-PER", "O", "B-LOC"], ["I-LOC", "B-LOC", "O"]]  # four entities; the second row is IOB1
  predictions = [["B-PER", "I-PER", "O", "O"], ["B-LOC", "I-LOC", "B-PER"]]  # three, one of them correct
  scores = metrics.entity_f1(targets, predictions)
  assert scores["precision"] == pytest.approx(100 / 3) and scores["recall"] == 25
  assert scores["f1"] == pytest.approx(200 / 7) and scores["f1_PER"] == pytest.approx(200 / 3)
  assert scores["f1_LOC"] == 0 and scores["token_accuracy"] == pytest.approx(300 / 7)
  # Missing tags are O, extra ones are dropped.
  assert metrics.entity_f1([["B-X", "O"]], [["B-X"]])["f1"] == 100
  assert metrics.entity_f1([["B-X", "O"]], [["B-X", "O", "B-X"]])["precision"] == 100


def test_bleu_takes_several_references_per_sentence():
  references = [["the cat sat on the mat", "a cat sat there now"], ["it rained all day long"]]
  assert metrics.bleu(references, ["a cat sat there now", "it rained all day long"])["bleu"] == pytest.approx(100)


@pytest.mark.parametrize("answer", [-1, 0, 1])
def test_a_constant_or_invalid_answer_never_crashes_class_metrics(answer):
  for targets in ([0, 1, 1], [-1, -1, -1], [1, 1, 1], [0]):
    for metric in (
      metrics.accuracy,
      metrics.matthews_corrcoef,
      metrics.f1_score_with_invalid,
      metrics.mean_multiclass_f1(3),
      metrics.pearson_corrcoef,
      metrics.spearman_corrcoef,
    ):
      for score in metric(targets, [answer] * len(targets)).values():
        assert 0 <= score <= 100


def test_undefined_scores_are_zero():
  assert metrics.pearson_corrcoef([1.0], [2.0]) == {"pearson_corrcoef": 0}
  assert metrics.pearson_corrcoef([1.0, 2.0], [float("nan"), 1.0]) == {"pearson_corrcoef": 0}
  assert metrics.pearson_corrcoef([1.0, 2.0, 3.0], [float("inf"), 1.0, 1.0]) == {"pearson_corrcoef": 0}
  assert metrics.spearman_corrcoef([1.0, 1.0], [1.0, 2.0]) == {"spearman_corrcoef": 0}
  assert metrics.auc([0, 0], [0.1, 0.2]) == {"auc-roc": 0, "auc-pr": 0}
  assert metrics.squad([[], ["x"]], ["", ""]) == {"em": 50, "f1": 0}
  assert metrics.entity_f1([["O"]], [["O"]]) == {"precision": 0, "recall": 0, "f1": 0, "token_accuracy": 100}
  assert metrics.bleu(["a b c d"], [""]) == {"bleu": 0} and metrics.rouge(["a"], [""])["rouge1"] == 0


@pytest.mark.parametrize("name", [n for n in metrics.__all__ if not n.startswith(("mean_", "deduplicate"))])
def test_empty_lists_and_lists_of_different_lengths_are_refused(name):
  with pytest.raises(UserError, match="nothing to score"):
    getattr(metrics, name)([], [])
  with pytest.raises(UserError, match="got 2 targets but 1 predictions"):
    getattr(metrics, name)([{"value": 1}] * 2, [{"value": 1}])


def test_groups_may_be_lists_and_arrays():
  import numpy as np

  rows = [
    {"group": [1, 2], "value": ["x"]},
    {"group": np.array([1, 2]), "value": ["y"]},
    {"group": (3, 4), "value": ["z"]},
  ]
  answers = [{"value": "x"}, {"value": "x"}, {"value": "x"}]
  assert metrics.deduplicate_metric(metrics.squad)(rows, answers) == {"em": 50, "f1": 50}
  assert metrics.mean_group_metric(metrics.squad)(rows, answers)["em"] == 25


def test_factories_return_partials_that_can_be_stored_as_json():
  for metric in (
    metrics.mean_multiclass_f1(3),
    metrics.mean_group_metric(metrics.all_match),
    metrics.deduplicate_metric(metrics.squad),
  ):
    assert isinstance(metric, functools.partial) and not metric.args
    assert json.loads(json.dumps(metric.keywords)) == metric.keywords


def test_rouge_equals_the_published_bootstrap_values():
  files = [(DATA / f"rouge_{side}.txt").read_text().splitlines() for side in ("targets", "predictions")]
  # rouge-score's own test data; the values are those of the t5 library.
  expected = {"rouge1": 38.517523467350486, "rouge2": 22.1524010821563, "rougeLsum": 38.362646331618514}
  assert metrics.rouge(*files) == pytest.approx(expected, abs=1e-6)
  # Both lines of a prediction match the same word of a target in one line; each line of a target matches its own.
  one, two = ["d d"], ["d\nd"]
  assert metrics.rouge(one, two)["rougeLsum"] == 50 and metrics.rouge(two, one)["rougeLsum"] == 100
