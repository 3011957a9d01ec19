"""`t5like tasks check`: reports nothing for a valid task, and a finding for each kind of problem."""

import json

import pytest

# Tasks with one problem each; the rows are written next to this module.
MODULE = """
import functools
import pathlib

import seqio
import tensorflow as tf

from t5like.tasks import metrics, postprocessors, preprocessors
from t5like.tasks.encoders import forms as encoder_forms, scores as encoder_scores
from t5like.tasks.library.corpora import register_corpus
from t5like.tasks.registry import default_features, register_task
from t5like.tasks.sources import JsonLinesSource

FOLDER = pathlib.Path(__file__).parent


def broken_metric(targets, predictions):
  raise ZeroDivisionError("no rows of this kind")


@seqio.map_over_dataset
def without_inputs(example):
  return {"question": example["question"], "targets": example["answer"]}


@seqio.map_over_dataset
def as_segments(example):
  label = tf.cast(tf.equal(example["answer"], "yes"), tf.int32)
  return {"first": example["question"], "second": example["answer"], "label": label}


@seqio.map_over_dataset
def number_as_target(example):
  return {"inputs": example["question"], "targets": 7}


def register(name, metric_fns, postprocess_fn=postprocessors.strip_text, step=None, rows="rows"):
  step = step or functools.partial(preprocessors.labeled_text, name="q", keys=("question",), label_key="answer")
  register_task(
    name,
    source=JsonLinesSource({"train": FOLDER / f"{rows}.jsonl"}, ["question", "answer"]),
    preprocessors=[step, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
    output_features={name: seqio.Feature(f.vocabulary, f.add_eos) for name, f in default_features().items()},
    postprocess_fn=postprocess_fn,
    metric_fns=metric_fns,
  )


def classes(*words):
  return functools.partial(postprocessors.string_label_to_class_id, label_classes=words)


register("valid", [metrics.accuracy], classes("yes", "no"))
register("unseen_label", [metrics.accuracy], classes("yes", "no", "maybe"))
register("misspelled_label", [metrics.accuracy], classes("yes", "No"))
register("not_in_vocabulary", [metrics.accuracy], classes("{yes}", "{no}"), rows="braces")
register("wrong_metric", [metrics.accuracy], postprocessors.qa, rows="rows")
register("metric_fails", [broken_metric])
register("no_inputs", [metrics.accuracy], step=without_inputs)
register("numbers", [metrics.accuracy], step=number_as_target)
register("holes", [metrics.accuracy], rows="holes")
register("always_long", [metrics.accuracy], rows="long")
for name, classes_of_labels in (("pairs_classification", 2), ("one_class_more_classification", 3)):
  register_task(
    name,
    source=JsonLinesSource({"train": FOLDER / "rows.jsonl"}, ["question", "answer"]),
    preprocessors=[as_segments, encoder_forms.encode_segments],
    output_features=encoder_forms.encoder_features(labels=encoder_forms.class_labels(classes_of_labels)),
    postprocess_fn=encoder_scores.class_id,
    metric_fns=[metrics.accuracy],
  )
register_corpus("diary", {"train": FOLDER / "diary.jsonl"})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tasks")
  (folder / "broken_tasks.py").write_text(MODULE)
  write(folder / "rows.jsonl", [(f"is {i} even?", "yes" if i % 2 == 0 else "no") for i in range(30)])
  write(folder / "braces.jsonl", [(f"is {i} even?", "{yes}" if i % 2 == 0 else "{no}") for i in range(30)])
  holes = [("once", "yes"), ("once", "yes"), ("once", "no"), ("more", ""), ("", "no"), ("<unk>", "<unk>")]
  write(folder / "holes.jsonl", holes * 2)
  write(folder / "long.jsonl", [("word " * 40 + str(i), "yes") for i in range(6)])
  with (folder / "diary.jsonl").open("w") as lines:
    for i in range(4):
      lines.write(json.dumps({"text": f"Day {i}. " + "It rained. " * 300}) + "\n")
  return folder


def write(path, rows):
  path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows))


@pytest.fixture
def check(t5like, folder, monkeypatch):
  def run(task, *options, status=0):
    monkeypatch.syspath_prepend(str(folder))
    return t5like("tasks", "check", task, "--task_modules=broken_tasks", *options, status=status).stdout

  return run


def test_a_valid_task(check):
  out = check("valid")
  assert "valid (train): 30 rows, vocabulary t5" in out and out.endswith("no problems\n")
  assert "labels: yes 15, no 15" in out
  assert "correct answers score: accuracy 100.00" in out and "always 'yes' scores: accuracy 50.00" in out
  assert "problem  " not in out and "note  " not in out


def test_the_shipped_sample(t5like):
  out = t5like("tasks", "check", "snli", "--split=validation").stdout
  assert "2,000 rows" in out and "always 'neutral' scores: accuracy 33.95" in out and "no problems" in out


def test_labels(check):
  out = check("unseen_label", status=1)
  assert "the label 'maybe' never occurs" in out and "1 problem" in out
  out = check("unseen_label", "--limit=4")  # a few rows need not have every label
  assert "the first 4 rows" in out and "never occurs in the first 4 rows" in out and "no problems" in out
  out = check("misspelled_label", status=1)
  assert "15 rows have the target 'no', which is not a label" in out and "row 1: q question: is 1 even?" in out
  assert "one of: yes, No" in out and "the label 'No' never occurs" in out


def test_targets_that_the_vocabulary_cannot_express(check):
  out = check("not_in_vocabulary", status=1)
  assert "30 of 30 targets cannot be expressed in the vocabulary, which costs accuracy 100.00" in out
  assert "'{yes}' decodes to" in out and "correct answers score: accuracy 0.00" in out
  assert "cannot be expressed" not in check("not_in_vocabulary", "--vocabulary=byte")  # bytes express any text


def test_functions_that_fail_are_named(check):
  out = check("metric_fails", status=1)
  assert "the metric broken_metric failed: ZeroDivisionError: no rows of this kind" in out
  out = check("wrong_metric", status=1)
  assert "the postprocessor qa failed: KeyError: 'answers'" in out and "row 0: yes" in out


def test_features_that_are_missing_or_not_text(check):
  out = check("no_inputs", status=1)
  assert "all rows have no 'inputs'" in out and "row 0 has: question, targets" in out
  out = check("numbers", status=1)
  assert "all rows have 'targets' of type int (expected text)" in out and "row 0: 7" in out and "tf.strings" in out


def test_rows_that_are_empty_duplicated_or_unlabeled(check):
  out = check("holes", status=1)
  assert "2 of 12 rows have empty 'targets'" in out and "row 3" in out
  assert "7 of 12 rows have the same text as an earlier one" in out and "rows 0 and 1: q question: once" in out
  assert "1 input has more than one target" in out and "rows 0, 2: yes / no" in out
  assert "2 of 12 rows have no label" in out and "row 5" in out


def test_truncated_text(check):
  out = check("always_long", "--lengths=inputs=16,targets=8", status=1)
  assert "'inputs' of every row is truncated at 16 tokens" in out and "100.00% at 16" in out and "0.00% at 8" in out
  assert "--lengths inputs=47 fits 99% of them" in out  # ▁ q ▁question : , 40 ▁word , ▁ 0 , </s>
  out = check("valid", "--lengths=inputs=9")  # two-digit numbers take one more token
  assert "are truncated at 9 tokens" in out and "no problems" in out
  assert "truncated at" not in check("diary")  # objectives cut a corpus into rows


def test_an_encoder_form(check, t5like):
  out = check("pairs_classification")
  assert "30 rows, vocabulary defined by the task" in out and "labels: 1 15, 0 15" in out and "no problems" in out
  assert "class 2 never occurs" in check("one_class_more_classification", status=1)
  out = check("pairs_classification", "--lengths=inputs=4", status=1)  # [CLS] is 0 even ? [SEP] yes [SEP] are 8
  assert "'inputs' of every row is truncated at 4 tokens" in out and "--lengths inputs=8" in out
  out = t5like("tasks", "show", "pairs_classification").stdout
  assert "inputs  8: [CLS] is 0 even ? [SEP] yes [SEP]" in out and "labels       1" in out
  message = t5like("tasks", "check", "pairs_classification", "--vocabulary=t5", status=2).stderr
  assert "has its own vocabulary" in message


def test_mixtures_and_mistakes(check, t5like):
  from t5like.tasks.mixtures import register_mixture

  check("valid")
  register_mixture("checked_together", {"valid": 30, "always_long": 6})
  out = check("checked_together")
  assert "valid (train)" in out and "always_long (train)" in out
  for options, message in (
    (["--lengths=inputs:5"], "invalid --lengths: inputs:5"),
    (["--limit=0"], "--limit: invalid value: '0' (expected a whole number of at least 1)"),
    (["--split=dev"], "no split 'dev'"),
  ):
    assert message in t5like("tasks", "check", "snli", *options, status=2).stderr
