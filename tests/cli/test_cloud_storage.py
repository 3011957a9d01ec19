"""Runs with directories on a fake Google Cloud Storage server."""

import gzip
import json
import signal
from pathlib import Path

import pytest
from gcs_server import environment, reached_from_here, serving
from trainers import finish, start, wait_for

from t5like.vocabularies.catalogue import vocabulary_path

BUCKET = "t5-bucket"


def steps_in(store, folder) -> list[int]:
  """Returns the steps of committed checkpoints."""
  parts = [name.split("/") for name in list(store.buckets[BUCKET]) if name.startswith(f"{folder}/checkpoints/")]
  return sorted(int(p[-2]) for p in parts if p[-1] == "commit_success.txt" and p[-2].isdigit())


def rows(store, name) -> list[dict]:
  return [json.loads(line) for line in store.buckets[BUCKET][name][1].decode().splitlines()]


@pytest.fixture
def store(monkeypatch, tmp_path):
  """A server for commands in this process."""
  with serving(BUCKET) as (address, store), reached_from_here(monkeypatch, address, tmp_path / "mirror"):
    yield store


def test_without_credentials_or_a_bucket_nothing_starts(store, t5like, pretrain):
  def refused(*more):
    return t5like(*pretrain, *more, status=2).stderr

  assert "bucket not found: 'nobodys'" in refused("--gin.MODEL_DIR=gs://nobodys/run")
  assert "bucket not found: 'nobodys' (CACHE_DIR=gs://nobodys/x)" in refused(
    f"--gin.MODEL_DIR=gs://{BUCKET}/run", "--gin.CACHE_DIR=gs://nobodys/x"
  )
  store.token = "secret"
  error = refused(f"--gin.MODEL_DIR=gs://{BUCKET}/run")
  assert "access denied" in error and "try" in error and "gcloud auth application-default login" in error
  assert "access denied" in t5like("eval", f"--model_dir=gs://{BUCKET}/run", "--task=snli", status=2).stderr
  assert not store.buckets[BUCKET], "nothing was written"


def test_a_run_on_a_store_resumes_despite_a_damaged_checkpoint(store, t5like, pretrain):
  """With a local token cache and a remote model directory."""
  run = [
    *pretrain, f"--gin.MODEL_DIR=gs://{BUCKET}/runs/demo", "--gin.LOG_PERIOD=1", "--gin.CHECKPOINT_PERIOD=2",
  ]  # fmt: skip
  t5like(*run, "--gin.TRAIN_STEPS=4")
  assert steps_in(store, "runs/demo") == [2, 4]
  sums = json.loads(store.buckets[BUCKET]["runs/demo/checkpoints/4/checksums.json"][1])["files"]
  assert all(str(crc).startswith("crc32c:") for _, crc in sums.values()) and "metadata/metadata" in sums
  victim = next(name for name in sums if "/d/" in name)
  del store.buckets[BUCKET][f"runs/demo/checkpoints/4/{victim}"]
  before = len(store.requests)
  output = t5like(*run, "--gin.TRAIN_STEPS=3").stdout
  assert "checkpoint 4 is damaged" in output and "its own checkpoint of step 2" in output
  assert steps_in(store, "runs/demo") == [2, 3]
  assert any(name.startswith("runs/demo/checkpoints/damaged-4/") for name in store.buckets[BUCKET])
  metrics = rows(store, "runs/demo/metrics.jsonl")
  assert [row["step"] for row in metrics if row["kind"] == "train"] == [1, 2, 3]
  reads = [r for r in store.requests[before:] if "metrics.jsonl" in r and "alt=media" in r]
  assert len(reads) == 2, "at the start, and for the plot at the end"
  for name in ("config.gin", "run_card.txt", "goodput.jsonl", "loss.png"):
    assert store.buckets[BUCKET][f"runs/demo/{name}"][1], name
  assert "runs/demo/trainer.lock" not in store.buckets[BUCKET]


@pytest.mark.slow  # two token caches, three trainers and an evaluation, each in a process
def test_a_run_with_everything_on_a_store_is_killed_resumed_and_evaluated(small_model, tmp_path):
  corpus = "".join(
    json.dumps({"text": f"Of rivers number {n}, and of the sea they run to."}) + "\n" for n in range(400)
  )
  with serving(BUCKET) as (address, store):
    env = environment(address, tmp_path / "mirror")
    store.put(BUCKET, "text/a-0.jsonl", corpus.encode(), {})
    store.put(BUCKET, "text/a-1.jsonl.gz", gzip.compress(corpus.encode()), {})
    store.put(BUCKET, "vocabularies/tiny.model", vocabulary_path("tiny").read_bytes(), {})
    common = [
      "train", *small_model, f"--gin.CACHE_DIR=gs://{BUCKET}/tokens",
      f"--gin.VOCABULARY=gs://{BUCKET}/vocabularies/tiny.model", "--gin.LOG_PERIOD=1", "--gin.CHECKPOINT_PERIOD=2",
    ]  # fmt: skip
    pretrain = [
      *common, "--gin_file=objectives/span_corruption.gin", "--gin_file=runs/pretrain.gin", "--gin.TASK=mine",
      f"--gin.CORPUS_FILES={{'train': 'gs://{BUCKET}/text/a-*'}}", "--gin.LENGTHS={'inputs': 32}",
      f"--gin.MODEL_DIR=gs://{BUCKET}/runs/first",
    ]  # fmt: skip
    trainer = start([*pretrain, "--gin.TRAIN_STEPS=100000"], **env)
    wait_for(lambda: len(steps_in(store, "runs/first")) >= 2, trainer, timeout=240)
    with open(f"/proc/{trainer.pid}/maps") as maps:
      assert "tensorflow" not in maps.read()
    trainer.send_signal(signal.SIGKILL)
    trainer.communicate()
    assert "runs/first/trainer.lock" in store.buckets[BUCKET], "its lease is still there"
    last = max(steps_in(store, "runs/first")) + 4
    output = finish([start([*pretrain, f"--gin.TRAIN_STEPS={last}"], **env)])[0]
    assert "its own checkpoint of step" in output and "a heartbeat" not in output
    steps = [row["step"] for row in rows(store, "runs/first/metrics.jsonl") if row["kind"] == "train"]
    assert steps == list(range(1, last + 1))

    finetune = [
      *common, "--gin_file=runs/finetune.gin", "--gin.TASK=snli", f"--gin.INIT_FROM=gs://{BUCKET}/runs/first",
      "--gin.LENGTHS={'inputs': 32, 'targets': 4}", "--gin.EVAL_EXAMPLES=20", "--gin.TRAIN_STEPS=4",
      f"--gin.MODEL_DIR=gs://{BUCKET}/runs/second",
    ]  # fmt: skip
    output = finish([start(finetune, **env)], timeout=300)[0]
    assert f"the parameters of gs://{BUCKET}/runs/first/checkpoints/{last}" in output
    scoring = ["eval", f"--model_dir=gs://{BUCKET}/runs/second", "--task=snli", "--split=validation", "--examples=10"]
    finish([start(scoring, **env)])
    scores = json.loads(store.buckets[BUCKET]["runs/second/evaluations/scores.json"][1])
    assert scores[0]["examples"] == 10 and "accuracy" in scores[0]["scores"]

    store.put(BUCKET, "questions.txt", b"one\ntwo\nthree\n", {})
    infer = ["infer", f"--model=gs://{BUCKET}/runs/second", f"--input=gs://{BUCKET}/questions.txt", "--max_length=2"]
    finish([start([*infer, f"--output=gs://{BUCKET}/answers.jsonl"], **env)])
    assert [(row["row"], row["inputs"]) for row in rows(store, "answers.jsonl")] == [
      (0, "one"),
      (1, "two"),
      (2, "three"),
    ]
    assert "answers.jsonl.lock" not in store.buckets[BUCKET]
    assert not list(Path.cwd().glob("gs:*")), "nothing became a local folder"
