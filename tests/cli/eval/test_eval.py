"""End-to-end tests of `t5like eval`, on a small run with three checkpoints."""

import csv
import json
import shutil

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.experiments import seqio_process as task_process
from t5like.training.checkpoints import load_parameters, save_parameters

_made = []


@pytest.fixture
def t5like(t5like, token_caches):
  """The command, with the existing token caches for evaluations."""

  def run(*args, **options):
    caches = [f"--cache_dir={token_caches}"] if args[0] == "eval" else []
    return t5like(*args, *caches, **options)

  return run


@pytest.fixture
def run(t5like, finetune, tmp_path_factory):
  """A fine-tuning run of 6 steps with a checkpoint every 2 steps."""
  if not _made:
    folder = tmp_path_factory.mktemp("run") / "a"
    options = ["--gin.EVAL_SPLIT=''", "--gin.TRAIN_STEPS=6", "--gin.CHECKPOINT_PERIOD=2", "--gin.KEEP.last=10"]
    t5like(*finetune, *options, f"--gin.MODEL_DIR={folder}")
    _made.append(folder)
  return _made[0]


@pytest.fixture
def copy(run, tmp_path):
  shutil.copytree(run, tmp_path / "a")
  return tmp_path / "a"


def scores(folder):
  return json.loads((folder / "evaluations/scores.json").read_text())


def predictions(folder, record):
  return [json.loads(line) for line in (folder / record["predictions"]).read_text().splitlines()]


@pytest.mark.parametrize("steps", ["", ",", "2;4", "-2"])
def test_invalid_steps_are_refused_before_the_model_is_loaded(t5like, copy, steps):
  assert f"invalid --steps={steps}" in t5like("eval", f"--model_dir={copy}", f"--steps={steps}", status=2).stderr


def test_all_checkpoints_are_evaluated_once(t5like, copy):
  options = ["eval", f"--model_dir={copy}", "--rank", "--examples=30"]
  out = t5like(*options, "--steps=all").stdout
  found = scores(copy)
  assert [(r["step"], r["task"], r["examples"]) for r in found] == [(2, "snli", 30), (4, "snli", 30), (6, "snli", 30)]
  for record in found:
    rows = predictions(copy, record)
    right = 100 * sum(row["prediction"] == row["target"] for row in rows) / 30
    assert len(rows) == 30 and record["scores"] == {"accuracy": pytest.approx(right)}
    for row in rows:  # the prediction is the most likely label
      assert row["prediction"] == max(row["log_likelihoods"], key=row["log_likelihoods"].get)
      assert set(row["log_likelihoods"]) == {"entailment", "neutral", "contradiction"}
    assert f"at step {record['step']}: accuracy {right:.2f}" in out
  table = list(csv.DictReader((copy / "evaluations/scores.csv").open()))
  assert [float(row["score"]) for row in table] == [r["scores"]["accuracy"] for r in found]

  before = (copy / "evaluations/scores.json").stat().st_mtime_ns
  again = t5like(*options, "--steps=all").stdout
  assert again.count("was already evaluated at step") == 3
  assert (copy / "evaluations/scores.json").stat().st_mtime_ns == before
  # A rewritten checkpoint is evaluated again; --again evaluates all.
  params = load_parameters(copy, 4)
  shutil.rmtree(copy / "checkpoints/4")
  save_parameters(copy, params, 4, json.loads((copy / "checkpoints/2/metadata/metadata").read_text())["fingerprint"])
  assert t5like(*options, "--steps=2,4").stdout.count("was already evaluated at step") == 1
  assert "was already evaluated" not in t5like(*options, "--step=2", "--again").stdout


@pytest.mark.slow
def test_greedy_few_shot_and_comparison(t5like, copy, tmp_path):
  (tmp_path / "quiz.txt").write_text("Say what follows.\n---\n{inputs}\nAnswer: {targets}\n\n")
  out = t5like("eval", f"--model_dir={copy}", "--examples=16", "--show=1").stdout
  assert "snli (validation, 16 examples) at step 6: accuracy" in out and "all answers:" in out
  options = ["eval", f"--model_dir={copy}", "--examples=16", "--rank", "--shots=2", f"--prompt={tmp_path / 'quiz.txt'}"]
  output = t5like(*options, "--inputs_length=100").stdout
  assert "of 16 prompts cannot fit 2 shots" in output
  t5like(*options)
  t5like(*options, "--seed=1")
  by_settings = {record["settings"]: record for record in scores(copy)}
  assert len(by_settings) == 4 and len({r["predictions"] for r in by_settings.values()}) == 4
  greedy, ranked = (
    copy / by_settings[s]["predictions"] for s in ("first 16", *(k for k in by_settings if "seed" in k))
  )
  compared = t5like("eval", "--compare", greedy, ranked, f"--out={tmp_path}", "--show=1").stdout
  a, b = (sum(r["prediction"] == r["target"] for r in map(json.loads, p.open())) for p in (greedy, ranked))
  assert f"{100 * a / 16:.2f}" in compared and f"{100 * (b - a) / 16:+.2f}" in compared and "95 % interval" in compared
  (differs,) = tmp_path.glob("*.differs.jsonl")
  rows = [json.loads(line) for line in differs.read_text().splitlines()]
  assert f"{len(rows)} answers differ" in compared
  same = t5like("eval", "--compare", copy, copy, "--resamples=100").stdout
  assert "not significant" in same and "0 answers differ" in same


def test_following_ends_with_the_run_and_skips_damaged_checkpoints(t5like, copy):
  victim = next(p for p in (copy / "checkpoints/4/params").rglob("*") if p.is_file() and p.stat().st_size > 1000)
  victim.write_bytes(victim.read_bytes()[:-100])
  out = t5like("eval", f"--model_dir={copy}", "--rank", "--examples=8", "--follow").stdout
  assert "step 4 is skipped: the checkpoint cannot be read: it is damaged" in out
  assert [record["step"] for record in scores(copy)] == [2, 6]
  error = t5like("eval", f"--model_dir={copy}", "--rank", "--examples=8", "--step=4", status=2).stderr
  assert "damaged" in error and "other_steps  2, 6" in error


def test_loss_of_targets_and_of_text(t5like, copy, tmp_path):
  """Bits per byte of targets equal those computed from the likelihoods of ranking."""
  t5like("eval", f"--model_dir={copy}", "--rank", "--examples=24")
  rows = predictions(copy, scores(copy)[0])
  nats = -sum(row["log_likelihoods"][row["target"]] for row in rows)
  size = sum(len(row["target"]) for row in rows)
  t5like("eval", f"--model_dir={copy}", "--loss", "--examples=24")
  found = next(record for record in scores(copy) if record["settings"].startswith("loss"))["scores"]
  assert found["bytes"] == size and found["bits_per_byte"] == pytest.approx(nats / size / np.log(2), rel=1e-5)
  (tmp_path / "book.jsonl").write_text('{"text": "It was a dark and stormy night. "}\n' * 20)
  text = [f"--model_dir={copy}", "--loss", f"--text={tmp_path / 'book.jsonl'}", "--examples=15"]
  output = t5like("eval", *text).stdout
  assert "hidden text given the rest (span_corruption" in output and "bits_per_byte" in output
  (found,) = (record for record in scores(copy) if record["task"] == "book.jsonl")
  assert found["examples"] == 15 and found["scores"]["bytes"] == pytest.approx(0.15 * 15 * 32, rel=0.1)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--task=novels", "--split=train"], "is a corpus without targets to score"),
    (["--task=snlii"], "nearest  snli"),
    (["--step=3"], "no checkpoint of step 3"),
    (["--average", "--examples=4"], "no moving average of the parameters"),
    (["--shots=1", "--prompt=none.txt"], "cannot read the prompt template none.txt"),
    (["--rank", "--candidates=choices"], "neither a field of task 'snli' nor a file"),
    (["--rank", "--beams=4"], "--rank does not decode"),
    (["--stride=4"], "--stride requires --loss"),
    (["--loss", "--text=none.txt"], "cannot read none.txt"),
    (["--vocabulary=t5"], "the model's embedding"),
    (["--shots=2", "--prompt={quiz}", "--inputs_length=8"], "tokens (limit 8)"),
    (["--submit=squad", "--task=snli"], "is not part of the squad leaderboard"),
    (["--top_p=2"], "--top_p=2.0 is invalid"),
    (["--out={quiz}"], "quiz.txt is not a folder"),
  ],
)
def test_invalid_input_is_reported_before_work_starts(t5like, run, tmp_path, options, message):
  (tmp_path / "quiz.txt").write_text("{inputs} {targets}\n")
  options = [option.replace("{quiz}", str(tmp_path / "quiz.txt")) for option in options]
  error = t5like("eval", f"--model_dir={run}", f"--out={tmp_path}", *options, status=2).stderr
  assert message in error and not (tmp_path / "evaluations").exists()


def test_invalid_commands(t5like, tmp_path):
  assert "exactly one of --model_dir and --compare is required" in t5like("eval", status=2).stderr
  assert "nothing to compare in" in t5like("eval", "--compare", tmp_path / "a", tmp_path / "b", status=2).stderr
  assert f"no model in {tmp_path}" in t5like("eval", f"--model_dir={tmp_path}", status=2).stderr


def test_all_tasks_of_a_mixture_are_evaluated():
  """Includes those not used in training: MNLI's halves have no training split."""
  request = {"task": "glue", "split": "validation", "modules": []}
  found = task_process._members(request)
  assert {"glue_mnli_matched", "glue_mnli_mismatched", "glue_cola"} <= set(found)
  assert "glue_mnli" not in found and "glue_ax" not in found  # they have no split of that name
  with pytest.raises(UserError, match="(?s)no task of the mixture 'glue' has split 'dev'.*validation"):
    task_process._members(request | {"split": "dev"})
  with pytest.raises(UserError, match="no split 'dev'"):
    task_process._members({"task": "snli", "split": "dev", "modules": []})
