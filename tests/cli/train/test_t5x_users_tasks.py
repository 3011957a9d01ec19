"""A task module written for T5X in plain seqio trains and evaluates unchanged, and edits are detected."""

import json
import os
import re
import sys

import pytest
import seqio
from trainers import has_checkpoint

from t5like import data
from t5like.training.records.metrics import read_metrics
from t5like.vocabularies import load_vocabulary

MODULE = """
import functools
import seqio
import tensorflow as tf
from helpers import PROMPT, clean

VOCABULARY = seqio.SentencePieceVocabulary(VOCABULARY_FILE, extra_ids=100)
FEATURES = {"inputs": seqio.Feature(VOCABULARY), "targets": seqio.Feature(VOCABULARY)}


@seqio.map_over_dataset
def to_text(line):
  inputs, targets = tf.unstack(tf.strings.split(line, "\\t"), num=2)
  return {"inputs": tf.strings.join([PROMPT, clean(inputs)]), "targets": targets}


@seqio.map_over_dataset
def halves(example):
  ids = tf.concat([example["inputs"], example["targets"]], 0)
  return {"inputs": ids[: tf.size(ids) // 2], "targets": ids[tf.size(ids) // 2 :]}


def exact(targets, predictions):
  return {"exact": seqio.metrics.Scalar(100.0 * sum(t == p for t, p in zip(targets, predictions)) / len(targets))}


def likelihood(targets, scores):
  return {"mean_score": sum(scores) / len(scores)}


def confident(targets, predictions, aux_values):
  return {"confidence": max(aux_values["scores"])}


def add(name, *steps, **more):
  seqio.TaskRegistry.add(
    name,
    source=seqio.TextLineDataSource({"train": "rows.tsv", "validation": "rows.tsv"}),
    preprocessors=[to_text, seqio.preprocessors.tokenize, *steps, seqio.preprocessors.append_eos_after_trim],
    output_features=FEATURES,
    **more,
  )


add("only_scored", metric_fns=[likelihood])
add("pairs", postprocess_fn=lambda text, **unused: text.strip(), metric_fns=[exact, likelihood, confident])
add("halved", halves)
"""
HELPERS = """
import tensorflow as tf

PROMPT = "say: "


def clean(text):
  return tf.strings.lower(text)
"""
TINY = load_vocabulary("tiny")


@pytest.fixture
def folder(tmp_path, monkeypatch):
  (tmp_path / "t5x_tasks.py").write_text(MODULE.replace("VOCABULARY_FILE", repr(str(TINY.path))))
  (tmp_path / "helpers.py").write_text(HELPERS)
  (tmp_path / "rows.tsv").write_text("".join(f"Number {i} and {i * 7}\t{i} is it\n" for i in range(20)))
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)  # before folders that commands of other tests left on the path
  yield tmp_path
  forget()


def forget():
  """Simulates a new process, where nothing is imported or registered."""
  for module in ("t5x_tasks", "helpers"):
    sys.modules.pop(module, None)
  for task in ("pairs", "halved", "only_scored"):
    seqio.TaskRegistry.remove(task)


def edit(path, old, new):
  text = path.read_text()
  assert old in text
  path.write_text(text.replace(old, new))
  forget()


@pytest.fixture
def train(t5like, small_model):
  def run(task, *more, model_dir="run", **settings):
    forget()
    return t5like(
      "train", *small_model, "--gin_file=runs/finetune.gin", f"--gin.TASK={task}", "--gin.INIT_FROM=None",
      "--gin.TASK_MODULES=['t5x_tasks']", "--gin.CACHE_DIR=tokens", "--gin.TRAIN_STEPS=2", "--gin.LOG_PERIOD=1",
      "--gin.LENGTHS={'inputs': 16, 'targets': 6}", f"--gin.MODEL_DIR={model_dir}", *more,
      **settings,
    )  # fmt: skip

  return run


def cached(task, split="train"):
  base = data.cache_folder("tokens", task, split, "tiny", TINY.fingerprint)
  record = data.read_record(base)
  folder = base if record.kind == "text" else data.finished_folder(base, {"inputs": 16, "targets": 6})
  return data.open_cache(folder, rebuild_command="")


def test_answers_that_no_metric_takes_are_not_generated(train, folder):
  out = train("only_scored").stdout
  (row,) = [row for row in read_metrics("run") if row["kind"] == "eval/only_scored"]
  rows = [json.loads(line) for line in open("run/predictions/only_scored-validation-2.jsonl")]
  assert {answer["prediction"] for answer in rows} == {None} and "correct" not in out
  assert row["mean_score"] == pytest.approx(sum(answer["target_log_likelihood"] for answer in rows) / len(rows))


def test_all_three_kinds_of_metrics_are_computed_in_training_and_by_eval(t5like, train, folder):
  out = train("pairs").stdout
  (row,) = [row for row in read_metrics("run") if row["kind"] == "eval/pairs"]
  assert set(row) == {"step", "kind", "exact", "mean_score", "confidence"}
  assert row["mean_score"] < -5 and row["confidence"] < 0
  assert "dropout" in out
  forget()
  out = t5like("eval", "--model_dir=run", "--task=pairs", "--task_modules=t5x_tasks", "--cache_dir=tokens").stdout
  scores = {name: float(value) for name, value in re.findall(r"(exact|mean_score|confidence) (-?[\d.]+)", out)}
  assert scores == pytest.approx({name: row[name] for name in scores}, abs=0.006) and len(scores) == 3
  assert json.loads(open("run/predictions/pairs-validation-2.jsonl").readline())["target"] == "0 is it"
  error = train("pairs", "--gin.EARLY_STOPPING.metric=eval/pairs/exakt", model_dir="second", status=2).stderr
  assert "EARLY_STOPPING.metric = 'eval/pairs/exakt' is not computed" in error and "eval/pairs/exact" in error
  assert not os.path.exists("second")


@pytest.mark.slow
def test_steps_after_tokenize_are_run(train, folder):
  out = train("halved", "--gin.EVAL_SPLIT=''").stdout
  assert "cached as finished tokens: the step halves works on tokens" in out
  ids = TINY.encode("say: number 3 and 21") + TINY.encode("3 is it")
  half, end = len(ids) // 2, [TINY.eos_id]
  example = {name: tokens.tolist() for name, tokens in cached("halved").example(3).items()}
  assert example == {"inputs": ids[:half] + end, "targets": ids[half:][:5] + end}


@pytest.mark.slow
def test_an_edit_in_any_module_of_a_task_rebuilds_its_cache(t5like, train, folder):
  train("pairs", "--gin.EVAL_SPLIT=''")
  assert TINY.decode(cached("pairs").example(0)["inputs"]).startswith("say: number")
  edit(folder / "helpers.py", 'PROMPT = "say: "', 'PROMPT = "tell: "')
  out = train("pairs", "--gin.EVAL_SPLIT=''", model_dir="second").stdout
  assert "the module helpers has changed" in out
  assert TINY.decode(cached("pairs").example(0)["inputs"]).startswith("tell: number")
  edit(folder / "helpers.py", "tf.strings.lower", "tf.strings.upper")
  error = t5like("eval", "--model_dir=run", "--task=pairs", "--split=train", "--cache_dir=tokens", status=2).stderr
  assert "the token cache of task 'pairs' is stale: the module helpers has changed" in error
  assert "--task_modules=" in error
  train("pairs", "--gin.EVAL_SPLIT=''", model_dir="third")
  assert " AND " in TINY.decode(cached("pairs").example(0)["inputs"])


@pytest.mark.slow
def test_caches_of_earlier_versions_are_reused_and_an_edited_eos_step_is_detected(train, folder):
  train("pairs", "--gin.EVAL_SPLIT=''")
  record = cached("pairs").folder / "task.json"
  record.unlink()  # earlier versions did not write it
  out = train("pairs", "--gin.EVAL_SPLIT=''", model_dir="second").stdout
  assert "up to date" in out and record.is_file()
  edit(folder / "t5x_tasks.py", "seqio.preprocessors.append_eos_after_trim]", "seqio.preprocessors.append_eos]")
  train("pairs", "--gin.EVAL_SPLIT=''", model_dir="third")
  assert cached("pairs").eos_placement("targets") == "before_trim"


@pytest.mark.slow
def test_edited_metrics_take_effect_without_rebuilding_tokens(t5like, train, folder):
  edit(folder / "t5x_tasks.py", "100.0 * sum", "undefined * sum")
  error = train("pairs", status=2).stderr
  assert "the metric exact of task 'pairs' fails on the targets" in error and "undefined" in error
  assert not os.path.exists("run/checkpoints")
  built = os.stat(cached("pairs", "validation").folder / "cache.json").st_mtime_ns
  edit(folder / "t5x_tasks.py", "undefined * sum", "100.0 * sum")
  edit(folder / "t5x_tasks.py", "metric_fns=[exact, likelihood, confident]", "metric_fns=[likelihood]")
  assert "mean_score" in train("pairs").stdout
  assert os.stat(cached("pairs", "validation").folder / "cache.json").st_mtime_ns == built
  assert {"exact"} & set(next(row for row in read_metrics("run") if row["kind"] == "eval/pairs")) == set()
  edit(folder / "t5x_tasks.py", "metric_fns=[likelihood]", "metric_fns=[exact]")
  out = train("pairs").stdout  # already at its last step
  assert "pairs has changed since it was scored at step 2" in out and "exact" in out


FAILING = """
def exact(targets, predictions):
  if list(targets) != list(predictions):
    LEAVE
"""


@pytest.mark.slow
def test_a_metric_that_raises_is_named_and_nothing_is_lost(train, folder):
  fails = FAILING.replace("LEAVE", "raise RuntimeError('odd answers')") + '  return {"exact": 1.0}\n'
  edit(folder / "t5x_tasks.py", "def likelihood(", fails + "\n\ndef likelihood(")
  out = train("pairs").stdout
  assert "the metric exact failed: RuntimeError: odd answers" in out and "mean_score" in out
  assert os.path.isdir("run/checkpoints/2")


@pytest.mark.slow
def test_a_run_killed_during_an_evaluation_has_saved_and_evaluates_first_on_resume(train, folder):
  """The first evaluation copies the directory, as a kill would leave it."""
  copies = FAILING.replace("LEAVE", "import shutil; shutil.copytree('run', 'killed')") + '  return {"exact": 1.0}\n'
  edit(folder / "t5x_tasks.py", "def likelihood(", copies + "\n\ndef likelihood(")
  periods = ["--gin.EVAL_PERIOD=2", "--gin.CHECKPOINT_PERIOD=2"]
  train("pairs", *periods)
  assert has_checkpoint("killed", 2)()
  edit(folder / "t5x_tasks.py", "import shutil; shutil.copytree('run', 'killed')", "pass")
  train("pairs", *periods, "--gin.TRAIN_STEPS=3", model_dir="killed")
  kinds = [(row["step"], row["kind"]) for row in read_metrics("killed")]
  assert kinds == [(1, "train"), (2, "train"), (2, "eval/pairs"), (3, "train"), (3, "eval/pairs")]
