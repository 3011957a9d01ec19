"""Stored scores: reuse, concurrent writers, and averages as published."""

import csv
import dataclasses
import json
import math
import threading

import pytest
from full_disk import full_disk

from t5like.errors import UserError
from t5like.evaluation.tables import (
  Record,
  Results,
  averages,
  checkpoint_identity,
  csv_text,
  scores_table,
  steps_table,
)
from t5like.files import storage
from t5like.tasks.metrics.benchmarks import task_score

RECORD = Record(10, "ab", "snli", "validation", "", 100, {"accuracy": 61.5}, {"accuracy": 34.0})
# Raffel et al. 2019, table 16: the baseline, whose GLUE average is 83.28.
T5_BASELINE = {
  "glue_cola": {"matthews_corrcoef": 53.84},
  "glue_sst2": {"accuracy": 92.68},
  "glue_mrpc": {"f1": 92.07, "accuracy": 88.92},
  "glue_stsb": {"pearson_corrcoef": 88.02, "spearman_corrcoef": 87.94},
  "glue_qqp": {"f1": 88.67, "accuracy": 91.56},
  "glue_mnli_matched": {"accuracy": 84.24},
  "glue_mnli_mismatched": {"accuracy": 84.57},
  "glue_qnli": {"accuracy": 90.48},
  "glue_rte": {"accuracy": 76.28},
}


def test_averages_as_published():
  found = averages(T5_BASELINE | {"glue_ax": {}})
  assert found["GLUE average"] == pytest.approx(83.28, abs=0.005)
  # Computed by hand from nine rows of the table; each half of MNLI counts as one.
  assert found["average of 9 tasks"] == pytest.approx(
    (53.84 + 92.68 + 90.495 + 87.98 + 90.115 + 84.24 + 84.57 + 90.48 + 76.28) / 9
  )
  assert list(averages({"glue_cola": {"matthews_corrcoef": 5.0}, "squad": {"em": 1.0, "f1": 2.0}})) == [
    "average of 2 tasks"
  ]
  assert averages({"squad": {"em": 80.0, "f1": 88.0}}) == {}


def test_scores_that_are_not_numbers_are_valid_json(tmp_path):
  results = Results(tmp_path)
  results.add(dataclasses.replace(RECORD, scores={"loss": float("nan"), "accuracy": 1.0}, majority={"x": float("inf")}))
  (stored,) = json.loads(results.json.read_text(), parse_constant=pytest.fail)
  assert stored["scores"] == {"loss": None, "accuracy": 1.0} and stored["majority"] == {"x": None}
  (read,) = results.records()
  assert math.isnan(read.scores["loss"]) and read.scores["accuracy"] == 1.0
  results.add(dataclasses.replace(RECORD, step=20))  # writes both


def test_records_are_stored_and_replaced(tmp_path):
  results = Results(tmp_path / "evaluations")
  assert results.find(RECORD) is None
  results.add(RECORD)
  results.add(dataclasses.replace(RECORD, step=2))
  results.add(dataclasses.replace(RECORD, scores={"accuracy": 70.0}))
  assert [(r.step, r.scores["accuracy"]) for r in results.records()] == [(2, 61.5), (10, 70.0)]
  # Another checkpoint of the same step, or other settings, is another record.
  for change in ({"checkpoint": "cd"}, {"settings": "rank sum"}, {"split": "test"}, {"data": "other"}):
    assert results.find(dataclasses.replace(RECORD, **change)) is None
  rows = list(csv.DictReader(results.csv.open()))
  assert [(row["step"], row["metric"], row["score"]) for row in rows] == [
    ("2", "accuracy", "61.5"),
    ("10", "accuracy", "70.0"),
  ]
  assert json.loads(results.json.read_text())[1]["majority"] == {"accuracy": 34.0}
  results.json.write_text("[{")
  with pytest.raises(UserError, match="cannot read the earlier scores"):
    results.records()


def test_a_checkpoint_that_was_written_again_has_one_record(tmp_path):
  results = Results(tmp_path)
  results.add(RECORD)
  results.add(again := dataclasses.replace(RECORD, checkpoint="cd", scores={"accuracy": 1.0}))
  assert results.records() == [again] and results.find(RECORD) is None
  Results(tmp_path, shared=True).add(RECORD)  # --out: perhaps of another model
  assert len(results.records()) == 2


def test_an_evaluation_that_is_killed_between_both_files_is_repeated(tmp_path, monkeypatch):
  write = storage.write_atomic

  def fail(path, text):
    if path.suffix == ".json":
      raise KeyboardInterrupt
    write(path, text)

  results = Results(tmp_path)
  with monkeypatch.context() as killed:
    killed.setattr(storage, "write_atomic", fail)
    with pytest.raises(KeyboardInterrupt):
      results.add(RECORD)
  assert results.find(RECORD) is None
  results.add(RECORD)
  assert len(list(csv.DictReader(results.csv.open()))) == 1


def test_a_full_disk_is_reported_and_keeps_earlier_scores(tmp_path):
  results = Results(tmp_path)
  results.add(RECORD)
  with full_disk(400), pytest.raises(UserError, match="cannot write scores\n.*\n.*free some space") as error:
    results.add(dataclasses.replace(RECORD, step=20))
  assert error.value.lines["folder"] == str(tmp_path) and error.value.lines["because"] == "File too large"
  assert results.records() == [RECORD]


def test_concurrent_writers_lose_no_records(tmp_path):
  def write(first):
    for step in range(first, first + 8):
      Results(tmp_path).add(dataclasses.replace(RECORD, step=step))

  threads = [threading.Thread(target=write, args=(first,)) for first in (0, 100, 200)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(Results(tmp_path).records()) == 24


def test_tables_to_read():
  other = dataclasses.replace(RECORD, task="squad", scores={"em": 80.0, "f1": 88.25}, majority={})
  assert scores_table([RECORD, other]).splitlines() == [
    "  task                examples  metric    score  majority baseline",
    "  snli                     100  accuracy  61.50              34.00",
    "  squad                    100  em        80.00",
    "                                f1        88.25",
    "  average of 2 tasks                      70.75",
  ]
  later = [dataclasses.replace(r, step=2000) for r in (RECORD, other)]
  assert steps_table([RECORD, other, *later]).splitlines() == [
    "   step   snli  squad  average",
    "     10  61.50  80.00    70.75",
    "  2,000  61.50  80.00    70.75",
  ]


def test_a_single_task_has_no_average_and_targets_may_be_withheld():
  withheld = dataclasses.replace(RECORD, step=None, task="glue_ax", examples=1104, scores={}, majority={})
  plain = dataclasses.replace(RECORD, majority={})
  assert scores_table([plain, withheld]).splitlines() == [
    "  task     examples  metric                      score",
    "  snli          100  accuracy                    61.50",
    "  glue_ax     1,104  none: targets are withheld",
  ]
  assert steps_table([plain]).splitlines() == ["  step   snli", "    10  61.50"]
  # A checkpoint without scores of one of the tasks has no average.
  other = dataclasses.replace(RECORD, step=20, task="squad", scores={"em": 80.0})
  assert steps_table([RECORD, other]).splitlines() == [
    "  step   snli  squad  average",
    "    10  61.50",
    "    20         80.00",
  ]


def test_the_score_of_a_task_for_averages():
  assert task_score("glue_mrpc", {"f1": 90.0, "accuracy": 80.0}) == 85.0
  assert task_score("super_glue_record", {"em": 50.0, "f1": 60.0}) == 55.0
  assert task_score("squad", {"em": 50.0, "f1": 60.0}) == 50.0
  assert task_score("cnn_dailymail", {"rouge1": 40.0, "rouge2": 19.0, "rougeLsum": 37.0}) == 19.0
  # Without its other metric, or outside of a benchmark: the mean of all metrics.
  assert task_score("glue_mrpc", {"accuracy": 80.0, "other": 1.0}) == 40.5
  assert task_score("my_glue_mrpc", {"f1": 90.0, "accuracy": 80.0}) == 85.0
  with pytest.raises(UserError, match="task '.+' has no metrics"):
    task_score("glue_ax", {})


def test_evaluations_are_distinguished_by_settings_and_old_records_by_their_text(tmp_path):
  """Earlier versions stored only the text."""
  results = Results(tmp_path)
  results.folder.mkdir(exist_ok=True)
  old = dataclasses.asdict(dataclasses.replace(RECORD, settings="rank sum, first 30"))
  del old["identity"]
  results.json.write_text(json.dumps([old]))
  ranked = dataclasses.replace(RECORD, settings="rank sum, first 30", identity={"rank": "sum", "examples": 30})
  assert results.find(ranked).scores == {"accuracy": 61.5}
  assert results.find(dataclasses.replace(ranked, settings="rank mean, first 30", identity={"rank": "mean"})) is None
  results.add(dataclasses.replace(ranked, scores={"accuracy": 70.0}))  # replaces the old one
  assert [r.identity for r in results.records()] == [{"rank": "sum", "examples": 30}]
  assert results.find(dataclasses.replace(ranked, settings="put otherwise")).scores == {"accuracy": 70.0}
  assert results.find(dataclasses.replace(ranked, identity={"rank": "sum", "examples": 31})) is None


@pytest.mark.parametrize(
  ("score", "shown"),
  [
    (61.456, "61.46"), (0.12345, "0.1235"), (0.0, "0.00"), (-0.5, "-0.5000"), (1.0, "1.00"), (999.99, "999.99"),
    (1000.4, "1,000"), (9_999_999.0, "9,999,999"), (1e7, "1e+07"), (1234, "1,234"), (5, "5"),
  ],
)  # fmt: skip
def test_scores_are_shown_with_significant_digits(score, shown):
  record = dataclasses.replace(RECORD, scores={"accuracy": score}, majority={})
  assert scores_table([record]).splitlines()[1].split()[-1] == shown


def test_the_csv_table(tmp_path):
  unnumbered = dataclasses.replace(RECORD, step=None, scores={"em": 1.5, "f1": 2.0}, majority={"f1": 0.5})
  assert csv_text([unnumbered]).splitlines() == [
    "step,task,split,settings,examples,metric,score,always_commonest",
    ",snli,validation,,100,em,1.5,",
    ",snli,validation,,100,f1,2.0,0.5",
  ]
  results = Results(tmp_path)
  for record in (RECORD, dataclasses.replace(RECORD, task="boolq"), unnumbered):
    results.add(record)
  assert [(r.step, r.task) for r in results.records()] == [(None, "snli"), (10, "boolq"), (10, "snli")]


def test_a_rewritten_checkpoint_has_another_identity(tmp_path):
  for name, file in (("a", "d/123"), ("b", "d/456"), ("c", "d/123")):
    (tmp_path / name / "params/d").mkdir(parents=True)
    (tmp_path / name / "params" / file).write_text("x")
  same = [checkpoint_identity(tmp_path / name) for name in "abc"]
  assert same[0] == same[2] != same[1]
