"""Fine-tuning mixtures, and the columns of the paper's tables."""

import pytest

from t5like.ablations.benchmarks import group_of, group_scores, parse_mixture
from t5like.ablations.tables import BASELINE, BASELINE_TASKS
from t5like.errors import UserError
from t5like.tasks.metrics.benchmarks import task_score


def test_the_papers_own_scores_average_to_its_own_glue_column():
  """Table 16's scores of the baseline average to the 83.28 and 80.88 of Table 1."""
  scores = {task: task_score(task, metrics) for task, metrics in BASELINE_TASKS.items()}
  groups = group_scores(scores)
  assert groups["glue"] == pytest.approx(BASELINE["glue"], abs=0.01)
  assert groups["squad"] == BASELINE["squad"]


def test_groups_and_metrics():
  assert [group_of(t) for t in ("glue_cola_v002", "super_glue_wic", "squad", "cnn_dailymail", "snli", "squad_v2")] == [
    "glue", "superglue", "squad", "cnndm", "other", "other",
  ]  # fmt: skip
  assert task_score("cnn_dailymail", {"rouge1": 40.0, "rouge2": 19.0, "rougeLsum": 37.0}) == 19.0
  assert task_score("super_glue_cb_v002", {"mean_3class_f1": 90.0, "accuracy": 80.0}) == 85.0
  assert task_score("glue_mrpc", {"f1": 90.0, "accuracy": 80.0}) == 85.0
  assert task_score("snli", {"accuracy": 60.0}) == 60.0


def test_mixtures_are_tasks_benchmarks_or_both():
  glue = parse_mixture("glue")
  assert len(glue.trained) == 8 and "glue_mnli" in glue.trained
  assert len(glue.evaluated) == 9 and {"glue_mnli_matched", "glue_mnli_mismatched"} <= set(glue.evaluated)
  more = parse_mixture("super_glue+squad")
  assert "dpr" in more.trained and "dpr" not in more.evaluated and "squad" in more.evaluated
  assert parse_mixture("snli").trained == parse_mixture("snli").evaluated == ("snli",)
  with pytest.raises(UserError):
    parse_mixture("squad+")
