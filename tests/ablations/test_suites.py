"""Suites: recipes with seeds in one command, resumed, with a table of mean, spread and average."""

import json
from statistics import fmean, stdev

import pytest

from t5like.ablations.benchmarks import average_score
from t5like.ablations.suites.table import suite_table
from t5like.ablations.sweep.results import Cost, Result
from t5like.errors import UserError
from t5like.tasks.metrics.benchmarks import task_score
from t5like.training.records.goodput import read_attempts
from t5like.training.records.metrics import read_metrics

MODEL = [
  "--gin_file=models/t5/tiny.gin", "--gin.EMBED_DIM=16", "--gin.MLP_DIM=32", "--gin.NUM_HEADS=2", "--gin.HEAD_DIM=8",
  "--gin.NUM_ENCODER_LAYERS=1", "--gin.NUM_DECODER_LAYERS=1", "--gin.BATCH_SIZE=8", "--gin.INIT_FROM=None",
]  # fmt: skip
SUITE = """# A suite.
import t5like.ablations.configurables
suite.recipes = ['finetune/sentences/snli.gin']
suite.seeds = %SEEDS
SEEDS = 1
"""


def command(folder, token_caches, *more):
  return [
    "train", *MODEL, "--gin_file=finetune/t5.gin", f"--gin_file={folder / 'suite.gin'}", "--gin.TRAIN_STEPS=2",
    "--gin.EVAL_PERIOD=1", "--gin.EVAL_EXAMPLES=20", "--gin.TEXT_LENGTHS={'inputs': 32, 'targets': 4}",
    f"--gin.CACHE_DIR={token_caches}", f"--gin.MODEL_DIR={folder / 'suite'}", *more,
  ]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "suite.gin").write_text(SUITE)
  return tmp_path


def test_a_suite_is_trained_resumed_and_tabulated(t5like, folder, token_caches):
  first = t5like(*command(folder, token_caches)).stdout
  assert "[1/1] sentences/snli, seed 0" in first and "1 of 1 runs finished" in first
  suite = folder / "suite"
  attempts = {path: len(read_attempts(path)) for path in suite.glob("runs/*/goodput.jsonl")}
  assert len(attempts) == 1

  second = t5like(*command(folder, token_caches, "--gin.SEEDS=2")).stdout
  assert "2 of 2 runs finished" in second and "sentences/snli, seed 0" not in second
  assert attempts == {path: len(read_attempts(path)) for path in attempts}  # not trained again

  # The best evaluation of each run counts, and its checkpoint is kept.
  scores, last = {}, {}
  for seed in (0, 1):
    run = suite / f"runs/sentences.snli-seed{seed}"
    evaluations = {row["step"]: row["accuracy"] for row in read_metrics(run) if row["kind"] == "eval/snli"}
    assert set(evaluations) == {1, 2}
    best = max(evaluations, key=evaluations.get)
    scores[seed], last[seed] = evaluations[best], evaluations[2]
    assert (run / f"checkpoints/{best}").is_dir()
    assert json.loads((run / "run_card.json").read_text())
  line = next(line for line in second.splitlines() if line.startswith("snli "))
  table = (suite / "scores.txt").read_text()
  assert table in second and line in table
  shown = [
    text for found in (scores, last) for text in (f"{fmean(found.values()):.2f}", "±", f"{stdev(found.values()):.2f}")
  ]
  assert line.split()[:7] == ["snli", *shown]

  refused = t5like(*command(folder, token_caches, "--gin.FINETUNE_LEARNING_RATE=0.5"), status=2).stderr
  assert "with other settings" in refused and "another MODEL_DIR" in refused


def test_the_commands_of_a_dry_run_train_single_runs(t5like, folder, token_caches):
  recipes = "--gin.suite.recipes=['finetune/sentences/snli.gin', 'finetune/glue/mnli.gin']"
  printed = t5like(*command(folder, token_caches, "--gin.SEEDS=3", "--dry_run", recipes)).stdout.splitlines()
  lines = [line for line in printed if line.startswith("t5like train")]
  assert len(lines) == 6 and not (folder / "suite").exists()
  assert f"--gin.MODEL_DIR={folder}/suite/runs/glue.mnli-seed2" in lines[-1]
  assert "--gin.SEED=2" in lines[-1] and "--gin.suite.recipes=" in lines[-1] and "SEEDS" not in lines[-1]


def test_invalid_suites_train_nothing(t5like, folder, token_caches):
  assert "invalid SEEDS: 0" in t5like(*command(folder, token_caches, "--gin.SEEDS=0"), status=2).stderr
  (folder / "own.gin").write_text("TEXT_TASK = 'snli'\n")
  recipes = f"--gin.suite.recipes=['finetune/sentences/snli.gin', '{folder}/own.gin']"
  assert "no metric for task 'snli'" in t5like(*command(folder, token_caches, recipes), status=2).stderr
  (folder / "own.gin").write_text("include 'finetune/sentences/snli.gin'\n")
  assert (
    "two recipes of the suite are scored on 'snli'" in t5like(*command(folder, token_caches, recipes), status=2).stderr
  )
  assert not (folder / "suite/runs").exists()


def result(recipe, seed, tasks, last=()):
  cost = dict.fromkeys(("pretraining", "finetuning", "total"), Cost("", 1, 0.0, 0.0, 0))
  return Result(recipe, seed, "suite", {}, tasks, [], None, cost, "", "", "", [], last=dict(last))


def test_the_table_by_hand():
  mrpc = [{"f1": 90.0, "accuracy": 86.0, "best_step": 10}, {"f1": 88.0, "accuracy": 82.0, "best_step": 20}]
  halves = [(84.0, 86.0), (80.0, 81.0)]
  last = {"glue_mrpc_classification": {"f1": 80.0, "accuracy": 70.0}}
  results = [
    result("glue/mrpc", seed, {"glue_mrpc_classification": metrics}, last) for seed, metrics in enumerate(mrpc)
  ]
  results += [
    result("glue/mnli", seed, {
      "glue_mnli_matched_classification": {"accuracy": a, "best_step": 5},
      "glue_mnli_mismatched_classification": {"accuracy": b, "best_step": 6},
    }) for seed, (a, b) in enumerate(halves)
  ]  # fmt: skip
  text = suite_table(results)
  assert text.splitlines()[-2].startswith("score: of each run's best checkpoint, chosen on the same split")
  lines = [line.split() for line in text.splitlines()[:-2]]
  spread = f"{stdev([88, 85]):.2f}"
  assert lines[1][:9] == ["glue_mrpc_classification", "86.50", "±", spread, "75.00", "±", "0.00", "88.00", "2"]
  assert lines[1][9] == "runs/glue.mrpc-seed0/checkpoints/10"
  assert " ".join(lines[1][10:]) == f"f1 89.00 ± {stdev([90, 88]):.2f}, accuracy 84.00 ± {stdev([86, 82]):.2f}"
  # MNLI's halves are one task. Seed 0: 88 and 85, seed 1: 85 and 80.5.
  assert lines[-1][:4] == ["average", f"{fmean([86.5, 82.75]):.2f}", "±", f"{stdev([86.5, 82.75]):.2f}"]
  # A seed without all tasks does not count in the average.
  assert suite_table(results[:3]).splitlines()[-3].split()[-1] == "1"
  assert suite_table([]) == ""


def test_scores_of_heads_are_those_of_their_benchmark():
  assert task_score("glue_mrpc_classification", {"f1": 90.0, "accuracy": 80.0, "loss": 1.0}) == 85
  assert task_score("squad_spans", {"em": 80.0, "f1": 90.0}) == 80
  assert task_score("wnut_17_tagging", {"precision": 10.0, "recall": 20.0, "f1": 13.0, "f1_person": 50.0}) == 13
  assert average_score({"glue_cola": 50.0, "super_glue_rte": 60.0, "glue_rte": 70.0}) == 60


def test_two_recipes_must_not_have_the_same_name(folder):
  from t5like.ablations.suites.plan import find_suite

  files = ["models/t5/tiny.gin", "finetune/t5.gin", "finetune/suites/glue.gin"]
  with pytest.raises(UserError, match="two recipes of the suite are named glue/cola"):
    find_suite(files, [("suite.recipes", "['finetune/glue/cola.gin', 'own/glue/cola.gin']"), ("MODEL_DIR", "x")])
  assert find_suite(files, [("suite.recipes", "[]")]) is None
  with pytest.raises(UserError, match="MODEL_DIR, the folder of the suite, is missing"):
    find_suite(files, [])
