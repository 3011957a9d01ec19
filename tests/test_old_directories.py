"""Model directories, checkpoints, token caches and sweeps of earlier commits load and give the same numbers."""

import csv
import json

import pytest

SMALL = [
  "--gin_file=models/t5/tiny.gin", "--gin.EMBED_DIM=8", "--gin.MLP_DIM=16", "--gin.NUM_HEADS=2", "--gin.HEAD_DIM=4",
  "--gin.NUM_ENCODER_LAYERS=1", "--gin.NUM_DECODER_LAYERS=1", "--gin.BATCH_SIZE=4",
]  # fmt: skip


def scores(t5like, *command: str) -> list[float]:
  out = t5like("infer", "--input=rows.jsonl", "--score", *command).stdout
  return [json.loads(line)["score"] for line in out.splitlines()]


@pytest.fixture
def rows(old_directories):
  """The rows that were scored with the commit that wrote the directories."""
  lines = [{"inputs": "the cat purrs", "targets": "cat"}, {"inputs": "a dog", "targets": "dog"}]
  (old_directories / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_an_old_run_has_the_same_scores(t5like, rows):
  assert scores(t5like, "--model=finetuned") == pytest.approx([-18.014665603637695, -17.000225067138672], abs=1e-4)


def test_an_old_converted_directory_has_the_same_scores(t5like, rows):
  """Its vocabulary was not copied into the directory at the time, and the original file is missing."""
  refused = t5like("infer", "--model=converted", "--input=rows.jsonl", "--score", status=2).stderr
  assert "vocabulary not found: '/tmp/old/hf/spiece.model'" in refused and "--vocabulary" in refused
  found = scores(t5like, "--model=converted", "--vocabulary=tiny")
  assert found == pytest.approx([-18.223209381103516, -17.148895263671875], abs=1e-4)


def test_the_users_vocabulary_is_used_with_a_warning(t5like, rows):
  out = t5like("infer", "--model=converted", "--input=rows.jsonl", "--score", "--vocabulary=byte")
  assert "the model was trained with another vocabulary than byte" in out.stderr and len(out.stdout.splitlines()) == 2


def test_an_old_evaluation_is_recognized_and_its_cache_is_read(t5like, old_directories):
  command = ["eval", "--model_dir=finetuned", "--task=pets", "--cache_dir=tokens"]
  assert "was already evaluated at step 4: accuracy 0.00" in t5like(*command).stdout
  before = (old_directories / "finetuned/predictions/pets-validation-4.jsonl").read_text()
  t5like(*command, "--again")
  assert (old_directories / "finetuned/predictions/pets-validation-4.jsonl").read_text() == before


def test_an_old_run_resumes_with_the_same_batches(t5like, old_directories):
  """Losses of steps 5 and 6 equal those of that commit."""
  t5like(
    "train", *SMALL, "--gin_file=objectives/span_corruption.gin", "--gin_file=runs/pretrain.gin", "--gin.TASK=opening",
    "--gin.CORPUS_FILES={'train': 'corpus.jsonl'}", "--gin.LENGTHS={'inputs': 16}", "--gin.CACHE_DIR=tokens",
    "--gin.LOG_PERIOD=1", "--gin.MODEL_DIR=run", "--gin.TRAIN_STEPS=6",
  )  # fmt: skip
  rows = [json.loads(line) for line in (old_directories / "run/metrics.jsonl").read_text().splitlines()]
  losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}
  assert list(losses) == [1, 2, 3, 4, 5, 6]
  assert [losses[5], losses[6]] == pytest.approx([8.575382232666016, 8.678059895833334], abs=1e-4)


def test_a_report_of_an_old_sweep_can_be_written(t5like, old_directories):
  t5like("ablate", "--report", "--sweep_dir=sweep", "--output=report")
  with (old_directories / "report/report.csv").open() as file:
    rows = [row for row in csv.DictReader(file) if row["seeds"] == "1"]
  assert [(row["recipe"], row["group"]) for row in rows] == [("encoder_decoder/span_corruption_2", "other")]
