"""The paired bootstrap, compared with exact values, and on prediction files."""

import json
import math

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.evaluation import comparison
from t5like.evaluation.comparison import (
  PairedAnswers,
  ScoreDifference,
  Selection,
  bootstrap_means,
  check_same_examples,
  compare,
  compare_paths,
  differences_table,
  differing_rows,
  is_correct,
  read_answers,
)

ACCURACY = {"function": "t5like.tasks.metrics:accuracy", "keywords": {}}
F1 = {"function": "t5like.tasks.metrics:f1_score_with_invalid", "keywords": {}}


def answers(predictions, targets, metrics=(ACCURACY,)):
  pairs = enumerate(zip(predictions, targets, strict=True))
  rows = [{"inputs": f"q{i}", "prediction": p, "target": t} for i, (p, t) in pairs]
  return PairedAnswers("file", rows, list(metrics))


def test_resamples_of_two_rows_follow_the_binomial_law():
  means = bootstrap_means(np.array([[0.0], [1.0]]), 10_000, seed=0)[:, 0]
  shares = [np.mean(means == value) for value in (0.0, 0.5, 1.0)]
  assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.02)
  assert np.array_equal(means, bootstrap_means(np.array([[0.0], [1.0]]), 10_000, seed=0)[:, 0])


def test_the_interval_of_a_mean_follows_the_central_limit_theorem():
  """1,000 rows; A is correct in 600, B in 640: 100 rows only in B, 60 only in A."""
  a = [1] * 600 + [0] * 400
  b = [1] * 540 + [0] * 60 + [1] * 100 + [0] * 300
  (found,) = compare(answers(a, [1] * 1000), answers(b, [1] * 1000))
  deviation = 100 * math.sqrt((0.16 - 0.04**2) / 1000)  # differences per row are 0, 1 and -1
  assert (found.a, found.b, found.resamples) == (60, 64, 10_000)
  assert (found.low, found.high) == pytest.approx((4 - 1.96 * deviation, 4 + 1.96 * deviation), abs=0.12)
  assert found.significant and found.better > 0.99
  assert "B is better" in differences_table([found])


def test_equal_runs_do_not_differ():
  one = answers([1, 0] * 50, [1, 1] * 50)
  (found,) = compare(one, one)
  assert (found.low, found.high, found.better) == (0, 0, 0.5) and not found.significant
  assert "not significant" in differences_table([found]) and differing_rows(one, one) == []


def test_a_metric_that_is_not_a_mean_is_recomputed_for_every_resample():
  """F1, compared with a plain loop over resamples."""
  draw = np.random.default_rng(5)
  targets = draw.integers(0, 2, 200)
  a, b = (np.where(draw.random(200) < right, targets, 1 - targets) for right in (0.7, 0.8))
  accuracy, f1 = compare(*(answers(x.tolist(), targets.tolist(), [ACCURACY, F1]) for x in (a, b)))
  assert (accuracy.resamples, f1.resamples) == (10_000, 1_000)

  def score(predictions, rows):
    both = np.sum((predictions[rows] == 1) & (targets[rows] == 1))
    return 200 * both / (np.sum(predictions[rows]) + np.sum(targets[rows]))

  drawn = [score(b, rows) - score(a, rows) for rows in draw.integers(0, 200, (4000, 200))]
  assert f1.b - f1.a == pytest.approx(score(b, slice(None)) - score(a, slice(None)))
  assert (f1.low, f1.high) == pytest.approx(np.percentile(drawn, (2.5, 97.5)), abs=0.8)


def test_a_metric_that_equals_the_mean_only_by_chance_is_recomputed(tmp_path, monkeypatch):
  """The median of 0, 50 and 100 is their mean, but not that of most resamples."""
  (tmp_path / "own_median.py").write_text(
    "import statistics\ndef median(targets, predictions): return {'median': statistics.median(predictions)}\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  sides = [
    answers(side * 7, [0] * 21, [{"function": "own_median:median", "keywords": {}}]) for side in ([0, 50, 100],) * 2
  ]
  (found,) = compare(*sides, resamples=40, modules=["own_median"])
  assert (found.a, found.resamples) == (50, 4)


def test_chunked_resamples_have_the_same_number_and_size(monkeypatch):
  monkeypatch.setattr(comparison, "_CHUNK", 6)  # two resamples of three rows at a time
  means = bootstrap_means(np.array([[0.0, 5.0], [3.0, 5.0], [6.0, 5.0]]), 501, seed=1)
  assert means.shape == (501, 2) and np.all(means[:, 1] == 5.0)
  assert means[:, 0].mean() == pytest.approx(3.0, abs=0.2) and len({round(m, 6) for m in means[:, 0]}) == 7


def test_the_table_of_differences():
  found = [
    ScoreDifference("em", 50.0, 52.0, 0.5, 3.5, 0.99, 10_000),
    ScoreDifference("f1", 60.0, 58.5, -2.0, -1.0, 0.015, 1000),
    ScoreDifference("bleu", 1.0, 1.0, 0.0, 0.0, 0.5, 10),
  ]
  assert differences_table(found, "old", "new").splitlines() == [
    "  metric    old    new  B - A   95 % interval  B better in  resamples",
    "  em      50.00  52.00  +2.00  +0.50 to +3.50        99.0%     10,000  B is better",
    "  f1      60.00  58.50  -1.50  -2.00 to -1.00         1.5%      1,000  A is better",
    "  bleu     1.00   1.00  +0.00  +0.00 to +0.00        50.0%         10  not significant",
  ]


def test_predictions_are_read_with_their_metrics(tmp_path):
  row = {"inputs": "q\u2028\u0085", "prediction": "x y", "target": ["x", "y"]}
  (tmp_path / "a.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
  assert read_answers(tmp_path / "a.jsonl").rows == [row]
  assert read_answers(tmp_path / "a.jsonl").metrics[0]["function"].endswith("accuracy")  # the default
  squad = {"function": "t5like.tasks.metrics:squad", "keywords": {}}
  (tmp_path / "a.scores.json").write_text(json.dumps({"metrics": [squad]}))
  em, f1 = compare(*[read_answers(tmp_path / "a.jsonl")] * 2, resamples=10)
  assert (em.metric, em.a, f1.metric, f1.a) == ("em", 0, "f1", pytest.approx(200 / 3))


def test_the_newest_predictions_of_a_task_with_numbers_in_its_name_are_compared(tmp_path):
  slug = "-shots_5_prompt_new-0a1b2c3d"
  for folder in ("a", "b"):
    (tmp_path / folder / "predictions").mkdir(parents=True)
    for step in (900, 5000):
      for rest in ("", "-first20", slug, f"-first20{slug}"):
        file = tmp_path / folder / "predictions" / f"news-2020-validation-{step}{rest}.jsonl"
        file.write_text(json.dumps({"inputs": "", "prediction": step, "target": 1}) + "\n")
  found = list(compare_paths(tmp_path / "a", tmp_path / "b", Selection(), resamples=10))
  name = "news-2020-validation"
  assert {each.name for each in found} == {name, f"{name}-first20", f"{name}{slug}", f"{name}-first20{slug}"}
  assert all("-5000" in each.a.path.name for each in found)


def test_a_step_and_tasks_can_be_selected(tmp_path):
  for folder in ("a", "b"):
    (tmp_path / folder / "predictions").mkdir(parents=True)
    for task in ("glue_mnli", "glue_mnli_matched"):
      for step in (100, 200, 300):
        file = tmp_path / folder / "predictions" / f"{task}-validation-{step}.jsonl"
        file.write_text(json.dumps({"inputs": "", "prediction": step, "target": 1}) + "\n")
  found = list(compare_paths(tmp_path / "a", tmp_path / "b", Selection(tasks=("glue_mnli",), step=200), resamples=10))
  assert [(each.name, each.a.path.name) for each in found] == [
    ("glue_mnli-validation", "glue_mnli-validation-200.jsonl")
  ]
  with pytest.raises(UserError, match="share no task"):
    list(compare_paths(tmp_path / "a", tmp_path / "b", Selection(step=250), resamples=10))


def mean_score(targets, scores):
  return {"mean_score": float(np.mean(scores))}


def confidence(targets, predictions, aux_values):
  return {"confidence": float(np.mean(aux_values["scores"])) + 10 * (predictions[0] == "x")}


def test_metrics_of_likelihoods_are_compared_by_them():
  def side(score):
    row = {"prediction": "x", "target": "y", "target_log_likelihood": score, "log_likelihood": score / 2}
    metrics = [("mean_score", "scores"), ("confidence", "aux_values")]
    entries = [{"function": f"{__name__}:{name}", "keywords": {}, "takes": takes} for name, takes in metrics]
    return PairedAnswers("file", [row] * 4, entries)

  found = compare(side(-2.0), side(-1.0), resamples=20, modules=[__name__])
  assert [(d.metric, d.a, d.b) for d in found] == [("mean_score", -2.0, -1.0), ("confidence", 9.0, 9.5)]
  notes, old = [], side(-2.0)
  for row in old.rows:
    row.pop("target_log_likelihood", None)
  assert [d.metric for d in compare(old, side(-1.0), 20, 0, notes.append, [__name__])] == ["confidence"]
  assert "the metric mean_score is left out" in notes[0]


def test_incomparable_files_are_clear_errors(tmp_path):
  (tmp_path / "bad.jsonl").write_text('{"prediction": 1, "target": 1}\n{"prediction": 1, "tar\n')
  with pytest.raises(UserError, match="line 2 of .*bad.jsonl"):
    read_answers(tmp_path / "bad.jsonl")
  (tmp_path / "empty.jsonl").write_text("")
  with pytest.raises(UserError, match="empty.jsonl is empty"):
    read_answers(tmp_path / "empty.jsonl")
  with pytest.raises(UserError, match="different numbers of rows: 3 and 2"):
    check_same_examples(answers([1] * 3, [1] * 3), answers([1] * 2, [1] * 2))
  with pytest.raises(UserError, match="row 2 differs in inputs or target"):
    check_same_examples(answers([1, 1], [1, 1]), answers([1, 1], [1, 0]))
  other = answers([1, 1], [1, 1])
  other.rows[0]["inputs"] = "another question"
  with pytest.raises(UserError, match="row 1 differs in inputs or target"):
    check_same_examples(answers([1, 1], [1, 1]), other)


def test_rows_that_differ():
  rows = differing_rows(answers([1, 2, 3], [1, 1, 3]), answers([1, 1, 4], [1, 1, 3]))
  assert [(row["row"], row["a"], row["b"]) for row in rows] == [(2, 2, 1), (3, 3, 4)]
  assert is_correct("x", ["x", "y"]) and is_correct([1], [1]) and not is_correct("z", ["x"])
