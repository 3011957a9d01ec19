"""`t5like tasks check`: silent about what is well, and for each thing that can be wrong a finding that names it."""

import json

import pytest

# Tasks that each have something wrong; the rows are written next to this module.
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


def spoilt_metric(targets, predictions):
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


register("well", [metrics.accuracy], classes("yes", "no"))
register("unseen_label", [metrics.accuracy], classes("yes", "no", "maybe"))
register("misspelled_label", [metrics.accuracy], classes("yes", "No"))
register("unwritable", [metrics.accuracy], classes("{yes}", "{no}"), rows="braces")
register("wrong_metric", [metrics.accuracy], postprocessors.qa, rows="rows")
register("metric_fails", [spoilt_metric])
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
  (folder / "spoilt_tasks.py").write_text(MODULE)
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
    return t5like("tasks", "check", task, "--task_modules=spoilt_tasks", *options, status=status).stdout

  return run


def test_a_task_that_is_well(check):
  out = check("well")
  assert "well (train): 30 rows, vocabulary t5" in out and out.endswith("no problems\n")
  assert "labels: yes 15, no 15" in out
  assert "right answers score: accuracy 100.00" in out and "always 'yes' scores: accuracy 50.00" in out
  assert "problem  " not in out and "note  " not in out


def test_the_shipped_sample(t5like):
  out = t5like("tasks", "check", "snli", "--split=validation").stdout
  assert "2,000 rows" in out and "always 'neutral' scores: accuracy 33.95" in out and "no problems" in out


def test_labels(check):
  out = check("unseen_label", status=1)
  assert "the label 'maybe' is never seen" in out and "1 problem" in out
  out = check("unseen_label", "--limit=4")  # a few rows need not have every label
  assert "the first 4 rows" in out and "never seen in the first 4 rows" in out and "no problems" in out
  out = check("misspelled_label", status=1)
  assert "15 rows have the target 'no', which is none of the labels" in out and "row 1: q question: is 1 even?" in out
  assert "one of: yes, No" in out and "the label 'No' is never seen" in out


def test_targets_that_the_vocabulary_cannot_write(check):
  out = check("unwritable", status=1)
  assert "30 of 30 targets cannot be written with the vocabulary, which costs accuracy 100.00" in out
  assert "'{yes}' comes back as" in out and "right answers score: accuracy 0.00" in out
  assert "cannot be written" not in check("unwritable", "--vocabulary=byte")  # bytes write everything


def test_functions_that_fail_are_named(check):
  out = check("metric_fails", status=1)
  assert "the metric spoilt_metric fails: ZeroDivisionError: no rows of this kind" in out
  out = check("wrong_metric", status=1)
  assert "the postprocessor qa fails: KeyError: 'answers'" in out and "row 0: yes" in out


def test_features_that_are_missing_or_no_text(check):
  out = check("no_inputs", status=1)
  assert "all rows have no 'inputs'" in out and "row 0 has: question, targets" in out
  out = check("numbers", status=1)
  assert "all rows have 'targets' that are no text but int" in out and "row 0: 7" in out and "tf.strings" in out


def test_rows_that_are_empty_repeated_or_unlabeled(check):
  out = check("holes", status=1)
  assert "2 of 12 rows have empty 'targets'" in out and "row 3" in out
  assert "7 of 12 rows have the same text as an earlier one" in out and "rows 0 and 1: q question: once" in out
  assert "1 question has more than one target" in out and "rows 0, 2: yes / no" in out
  assert "2 of 12 rows have no label" in out and "row 5" in out


def test_text_that_is_cut(check):
  out = check("always_long", "--lengths=inputs=16,targets=8", status=1)
  assert "every row's 'inputs' is cut at 16 tokens" in out and "100.00% at 16" in out and "0.00% at 8" in out
  assert "--lengths inputs=47 fits 99% of them" in out  # ▁ q ▁question : , 40 ▁word , ▁ 0 , </s>
  out = check("well", "--lengths=inputs=9")  # numbers of two digits take a token more
  assert "are cut at 9 tokens" in out and "no problems" in out
  assert "cut at" not in check("diary")  # objectives cut a corpus


def test_a_form_for_encoders(check, t5like):
  out = check("pairs_classification")
  assert "30 rows, vocabulary of its own" in out and "labels: 1 15, 0 15" in out and "no problems" in out
  assert "class 2 is never seen" in check("one_class_more_classification", status=1)
  out = check("pairs_classification", "--lengths=inputs=4", status=1)  # [CLS] is 0 even ? [SEP] yes [SEP] are 8
  assert "every row's 'inputs' is cut at 4 tokens" in out and "--lengths inputs=8" in out
  out = t5like("tasks", "show", "pairs_classification").stdout
  assert "inputs  8: [CLS] is 0 even ? [SEP] yes [SEP]" in out and "labels       1" in out
  message = t5like("tasks", "check", "pairs_classification", "--vocabulary=t5", status=2).stderr
  assert "has a vocabulary of its own" in message


def test_mixtures_and_mistakes(check, t5like):
  from t5like.tasks.mixtures import register_mixture

  check("well")
  register_mixture("checked_together", {"well": 30, "always_long": 6})
  out = check("checked_together")
  assert "well (train)" in out and "always_long (train)" in out
  for options, message in (
    (["--lengths=inputs:5"], "--lengths inputs:5 cannot be read"),
    (["--limit=0"], "--limit must be 1 or more"),
    (["--split=dev"], "no split 'dev'"),
  ):
    assert message in t5like("tasks", "check", "snli", *options, status=2).stderr
