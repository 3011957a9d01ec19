"""Benchmark averages equal the published ones, computed from the published scores of the tasks."""

import pytest

from t5like.errors import UserError
from t5like.tasks.metrics.benchmarks import glue_average, super_glue_average


def glue(cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli=None):
  scores = {
    "glue_cola": {"matthews_corrcoef": cola},
    "glue_sst2": {"accuracy": sst2},
    "glue_mrpc": {"f1": mrpc[0], "accuracy": mrpc[1]},
    "glue_stsb": {"pearson_corrcoef": stsb[0], "spearman_corrcoef": stsb[1]},
    "glue_qqp": {"f1": qqp[0], "accuracy": qqp[1]},
    "glue_mnli_matched": {"accuracy": mnli[0]},
    "glue_mnli_mismatched": {"accuracy": mnli[1]},
    "glue_qnli": {"accuracy": qnli},
    "glue_rte": {"accuracy": rte},
  }
  return scores | ({"glue_wnli": {"accuracy": wnli}} if wnli is not None else {})


# Raffel et al. 2019, table 16: the baseline.
T5_BASELINE = glue(53.84, 92.68, (92.07, 88.92), (88.02, 87.94), (88.67, 91.56), (84.24, 84.57), 90.48, 76.28)
# gluebenchmark.com: BERT large as its authors submitted it, and T5.
BERT = glue(60.5, 94.9, (89.3, 85.4), (87.6, 86.5), (72.1, 89.3), (86.7, 85.9), 92.7, 70.1, 65.1)
T5_11B = glue(71.6, 97.5, (92.8, 90.4), (93.1, 92.8), (75.1, 90.6), (92.2, 91.9), 96.9, 92.8, 94.5)


def super_glue(boolq, cb, copa, multirc, record, rte, wic, wsc):
  return {
    "super_glue_boolq": {"accuracy": boolq},
    "super_glue_cb": {"mean_3class_f1": cb[0], "accuracy": cb[1]},
    "super_glue_copa": {"accuracy": copa},
    "super_glue_multirc": {"f1": multirc[0], "exact_match": multirc[1]},
    "super_glue_record": {"f1": record[0], "em": record[1]},
    "super_glue_rte": {"accuracy": rte},
    "super_glue_wic": {"accuracy": wic},
    "super_glue_wsc": {"accuracy": wsc},
  }


def test_glue_as_published():
  assert glue_average(T5_BASELINE) == pytest.approx(83.28, abs=0.005)
  assert glue_average(BERT, include_wnli=True) == pytest.approx(80.5, abs=0.05)
  assert glue_average(T5_11B, include_wnli=True) == pytest.approx(90.3, abs=0.05)
  assert glue_average(T5_11B) == pytest.approx((90.3 * 9 - 94.5) / 8, abs=0.06)  # without WNLI by default


def test_super_glue_as_published():
  baseline = super_glue(76.62, (91.22, 91.96), 66.20, (66.13, 25.78), (69.05, 68.16), 75.34, 68.04, 78.56)
  assert super_glue_average(baseline) == pytest.approx(71.36, abs=0.005)
  t5_11b = super_glue(91.2, (93.9, 96.8), 94.8, (88.1, 63.3), (94.1, 93.4), 92.5, 76.9, 93.8)
  assert super_glue_average(t5_11b) == pytest.approx(89.3, abs=0.051)


def test_short_names_plain_numbers_and_extra_metrics_are_accepted():
  short = {task.removeprefix("glue_"): score for task, score in T5_BASELINE.items()}
  short["cola"] = {"accuracy": 1.0, "matthews_corrcoef": 53.84}
  short["mrpc"] = (92.07 + 88.92) / 2
  short["ax"] = {"matthews_corrcoef": 0.0}
  assert glue_average(short) == pytest.approx(glue_average(T5_BASELINE))


def test_missing_tasks_and_metrics_are_named():
  def without(task):
    return {name: score for name, score in BERT.items() if name != task}

  with pytest.raises(UserError, match="needs all its tasks") as error:
    glue_average(without("glue_rte"))
  assert "missing  rte" in str(error.value)
  with pytest.raises(UserError, match="only one is given"):
    glue_average(without("glue_mnli_matched"))
  with pytest.raises(UserError, match="needs all its tasks"):
    glue_average(without("glue_wnli"), include_wnli=True)
  with pytest.raises(UserError, match="mean of f1 and accuracy"):
    glue_average(BERT | {"glue_qqp": {"f1": 72.1}})
  with pytest.raises(UserError, match="no task 'sst'") as error:
    glue_average(BERT | {"glue_sst": {"accuracy": 1.0}})
  assert "sst2" in str(error.value)
