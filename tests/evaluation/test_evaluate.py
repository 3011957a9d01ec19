"""`t5like.evaluate` gives the scores of training and of `t5like eval`, and writes no files by default."""

import dataclasses
import json

import numpy as np
import pytest

from t5like import data
from t5like.data.rows import read_examples
from t5like.errors import UserError
from t5like.evaluation import EvaluatedModel, EvaluationSettings, Evaluator, evaluate
from t5like.evaluation.task_evaluation import merge_evaluations
from t5like.experiments.reading import load_experiment
from t5like.inference import load
from t5like.objectives import CATALOGUE, Lengths
from t5like.training.records.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("one_device")

SMALL = ["--gin.TRAIN_STEPS=4", "--gin.CHECKPOINT_PERIOD=2", "--gin.EVAL_PERIOD=2", "--gin.KEEP.last=10"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("run")


@pytest.fixture
def run(t5like, finetune, folder):
  """A fine-tuning run of 4 steps, evaluated in training at steps 2 and 4 on 20 examples."""
  if not (folder / "checkpoints").exists():
    t5like(*finetune, *SMALL, f"--gin.MODEL_DIR={folder}")
  return folder


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def contents(folder):
  return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", [2, 4])
def test_training_command_and_python_agree(t5like, run, token_caches, tmp_path, step):
  before = contents(run)
  found = evaluate(load(run), "snli", examples=20, step=step, cache_dir=str(token_caches))
  assert contents(run) == before  # nothing is written
  (row,) = [row for row in read_metrics(run) if row["kind"] == "eval/snli" and row["step"] == step]
  assert found.scores == {"accuracy": row["accuracy"]} and set(found.majority) == {"accuracy"}
  assert found.rows == lines(run / f"predictions/snli-validation-{step}-first20.jsonl")
  options = ["--examples=20", f"--step={step}", f"--cache_dir={token_caches}", f"--out={tmp_path}"]
  t5like("eval", f"--model_dir={run}", "--task=snli", *options)
  (record,) = json.loads((tmp_path / "evaluations/scores.json").read_text())
  assert record["scores"] == found.scores and record["majority"] == found.majority
  assert record["identity"] == {"examples": 20}
  assert lines(tmp_path / record["predictions"]) == found.rows


@pytest.mark.slow
def test_settings_equal_those_of_the_command(t5like, run, token_caches, tmp_path):
  model, options = load(run), {"examples": 12, "cache_dir": str(token_caches)}
  ranked = evaluate(model, "snli", rank="mean", shots=1, seed=3, out=tmp_path / "python", **options)
  for devices in (1, 8):
    t5like(
      "eval", f"--model_dir={run}", "--rank=mean", "--shots=1", "--seed=3", "--examples=12",
      f"--cache_dir={token_caches}", f"--out={tmp_path / str(devices)}", devices=devices,
    )  # fmt: skip
  own, one, eight = (next((tmp_path / side / "predictions").glob("*.jsonl")) for side in ("python", "1", "8"))
  assert own.name == one.name == eight.name and own.read_text() == one.read_text() and lines(own) == ranked.rows
  for mine, theirs in zip(lines(own), lines(eight), strict=True):  # sums may have another order: rounding
    assert mine.pop("log_likelihoods") == pytest.approx(theirs.pop("log_likelihoods"), rel=1e-5)
    assert mine == theirs
  assert set(ranked.rows[0]["log_likelihoods"]) == {"entailment", "neutral", "contradiction"}
  beams = evaluate(model, "snli", beams=2, **options)
  assert len(beams.rows) == 12 and "log_likelihoods" not in beams.rows[0]


@pytest.mark.parametrize(
  ("task", "given", "message"),
  [
    ("novels", {"split": "train"}, "is a corpus without targets to score"),
    ("snli", {"step": 3}, "no checkpoint of step 3"),
    ("snli", {"top_p": 2.0}, "top_p=2.0 is invalid"),
    ("snli", {"beam": 2}, "unknown setting 'beam'"),
  ],
)
def test_invalid_arguments_raise_user_errors(run, token_caches, task, given, message):
  with pytest.raises(UserError, match=message):
    evaluate(load(run), task, cache_dir=str(token_caches), **given)


def test_training_and_a_loaded_model_are_evaluated_alike(run):
  """The same prompts, lengths and batches, for fine-tuning and for labeled tasks mixed with text."""
  model = load(run)
  own = EvaluatedModel.of_loaded(model)
  assert own == EvaluatedModel.of(model.module, model.mesh, model.vocabulary, load_experiment(run, ()))
  assert (own.inputs, own.targets, own.batch_size, own.form.start, own.form.end) == (32, 4, 8, None, 1)
  mixed = dataclasses.replace(
    model.experiment, task="novels", objective=CATALOGUE["span_corruption"], lengths={"inputs": 64},
    mix={"novels": 1.0, "snli": 1.0},
  )  # fmt: skip
  lengths = CATALOGUE["span_corruption"].lengths(64)
  found = EvaluatedModel.of(model.module, model.mesh, model.vocabulary, mixed)
  assert (found.inputs, found.targets, found.form.end) == (lengths.inputs, lengths.targets, 1)


def test_inputs_are_truncated_and_terminated_as_in_training(run, token_caches):
  """Compares the prompts of all examples with the rows of training."""
  model = load(run)
  evaluated = EvaluatedModel.of_loaded(model)
  folder = data.cache_folder(token_caches, "snli", "validation", "tiny", model.vocabulary.fingerprint)
  cache = data.open_cache(folder, rebuild_command="")
  for closing in ("after_trim", "before_trim", "none"):
    cache.manifest["closing"] = {"inputs": closing}
    texts = read_examples(cache, np.arange(cache.examples), Lengths(0, 32, 4), evaluated.special).inputs
    evaluation_set = Evaluator(evaluated, EvaluationSettings()).read("snli", cache)
    assert evaluation_set.prompts == [row[:n].tolist() for row, n in zip(texts.tokens, texts.lengths, strict=True)]
    assert max(map(len, evaluation_set.prompts)) == 32 and len(evaluation_set.fields) == 2000
  assert len(Evaluator(evaluated, EvaluationSettings(examples=6)).read("snli", cache).prompts) == 6


def test_a_mixture_is_evaluated_on_all_its_tasks(run, token_caches):
  found = evaluate(load(run), "snli", examples=4, cache_dir=str(token_caches))
  both = merge_evaluations({"snli": found, "other": found})
  assert both.scores == {"snli/accuracy": found.scores["accuracy"], "other/accuracy": found.scores["accuracy"]}
  assert [row["task"] for row in both.rows] == ["snli"] * 4 + ["other"] * 4 and both.tasks["other"] is found
