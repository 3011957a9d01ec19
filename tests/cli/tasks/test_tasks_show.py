"""`t5like tasks show` and `t5like tasks list`."""

import pytest


def test_an_example_at_every_stage(t5like, monkeypatch):
  monkeypatch.setenv("COLUMNS", "120")
  out = t5like("tasks", "show", "snli", "--n=2").stdout
  first, second = out.split("snli (train), row 1")
  assert "raw     premise     A person on a horse jumps over a broken down airplane." in first
  assert (
    "text    inputs   snli hypothesis: A person is training his horse for a competition. premise: A person" in first
  )
  assert "targets  neutral" in first and "targets  2 of t5: ▁neutral </s>" in first
  assert "inputs  37 of t5: ▁ s n l i ▁hypothesis : ▁A ▁person" in first
  assert "targets  2 of t5: ▁contradiction </s>" in second
  assert "\033" not in out  # not a terminal


def test_tokens_are_those_of_the_given_vocabulary(t5like):
  out = t5like("tasks", "show", "snli", "--split=validation", "--vocabulary=bert_uncased").stdout
  assert "of bert_uncased: s ##nl ##i hypothesis :" in out
  assert "(validation), row 0" in out


@pytest.mark.slow
def test_a_corpus_with_an_objective(t5like):
  out = t5like("tasks", "show", "novels", "--lengths=inputs=64").stdout
  assert "span_corruption of novels: 70 tokens of text, 64 inputs, 15 targets, vocabulary t5, seed 0" in out
  rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(("  inputs ", "  targets "))}
  assert "<extra_id_0>" in out and set(rows) == {"inputs", "targets"}
  assert out != t5like("tasks", "show", "novels", "--lengths=inputs=64", "--seed=1").stdout
  assert out == t5like("tasks", "show", "novels", "--lengths=inputs=64").stdout


def test_the_objective_from_the_task_name_and_from_the_option(t5like):
  out = t5like("tasks", "show", "novels_bert_mlm", "--lengths=inputs=48").stdout
  assert "bert_mlm of novels_bert_mlm: 46 tokens of text, 48 inputs" in out and "[MASK]" in out
  assert "  predict 7 " in out  # 15% of 46
  out = t5like("tasks", "show", "novels", "--objective=prefix_lm", "--lengths=inputs=32").stdout
  assert "prefix_lm of novels" in out and "extra_id" not in out
  assert "is for a corpus" in t5like("tasks", "show", "snli", "--objective=lm", status=2).stderr
  assert "nearest" in t5like("tasks", "show", "novels", "--objective=prefix_ml", status=2).stderr


def test_a_mixture_is_shown_as_a_table(t5like):
  lines = t5like("tasks", "show", "glue_temperature").stdout.splitlines()
  assert lines[1].split() == ["task", "size", "rate", "percent"]
  rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
  assert rows["glue_cola"] == ["8,551", "92.47", "4.42"]  # sqrt(8551), of 2,091.6 in total
  assert rows["glue_ax"] == ["0", "0.00", "-"]


def test_the_list_contains_tasks_splits_and_mixtures(t5like):
  out = t5like("tasks", "list").stdout
  lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line.startswith("  ")}
  assert lines["snli"] == "train 30,000, validation 2,000"
  assert lines["glue_rte"] == "train 2,490, validation, test"
  assert lines["glue_without_cola"] == "7 tasks"
  assert lines["novels"].startswith("train 537, validation 23 also novels_<objective> for")
  assert "novels_span_corruption" not in out and "TFDS super_glue" in out
  assert "novels_span_corruption" in t5like("tasks", "list", "novels_span").stdout
  assert "snli" not in t5like("tasks", "list", "squad").stdout
  assert "no task or mixture name contains 'sqaud'" in t5like("tasks", "list", "sqaud", status=2).stderr


@pytest.mark.parametrize("options", [["--n=0"], ["--split=dev"], ["--lengths=inputs"]])
def test_invalid_options_are_refused(t5like, options):
  task = "novels" if "lengths" in options[0] else "snli"
  assert t5like("tasks", "show", task, *options, status=2).stderr.startswith("error: ")
