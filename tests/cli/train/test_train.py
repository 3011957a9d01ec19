"""`t5like train` as a user runs it: real processes, real checkpoints, real signals."""

import concurrent.futures
import json
import re
import shutil
import signal

import jax
import numpy as np
import pytest
from trainers import assert_same_bytes, cut_after, finish, has_checkpoint, losses, parameters, start, wait_for

from t5like import configuration
from t5like.runs import train
from t5like.training.loop import Hook
from t5like.training.records.metrics import read_metrics


@pytest.fixture(scope="module")
def steady(pretrain):
  return [*pretrain, "--gin.LOG_PERIOD=1", "--gin.CHECKPOINT_PERIOD=2", "--gin.NORMS_PERIOD=1"]


@pytest.fixture(scope="module")
def whole(t5like, steady, tmp_path_factory):
  """A run of four steps on one device, which tests must not change."""
  folder = tmp_path_factory.mktemp("runs") / "whole"
  t5like(*steady, f"--gin.MODEL_DIR={folder}", "--gin.TRAIN_STEPS=4")
  return folder


@pytest.fixture
def half(whole, tmp_path):
  """The first two steps of `whole`, to be resumed."""
  folder = shutil.copytree(whole, tmp_path / "half")
  cut_after(folder, 2)
  return folder


def test_a_run_from_any_directory_writes_everything_it_should(t5like_process, pretrain, tmp_path):
  run = [*pretrain, "--gin.MODEL_DIR=run", "--gin.TRAIN_STEPS=30", "--gin.LOG_PERIOD=5"]
  out = t5like_process(*run, cwd=tmp_path).stdout
  folder = tmp_path / "run"
  assert re.search(r"step 30/30  loss \d+\.\d+ .* tokens/s .* ETA", out)
  assert str(folder) in out
  names = {p.name for p in folder.iterdir()}
  assert {"checkpoints", "config.gin", "run_card.txt", "metrics.jsonl", "loss.png"} <= names
  assert any(name.startswith("events.out.tfevents") for name in names)
  assert (folder / "checkpoints/30/params").is_dir()
  assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
  curve = losses(folder)
  assert list(curve) == [5, 10, 15, 20, 25, 30]
  assert curve[30] < curve[5] - 0.5  # it learns: from ln(4224) = 8.3 towards the frequencies of words


def test_the_run_card_summarizes_the_run(t5like, pretrain, tmp_path):
  card = t5like(*pretrain, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=10", "--dry_run", devices=8).stdout
  # By hand: embedding 4224*16, an encoder layer 4*16*16 + 2*16*32 + 2*16 norms, a decoder layer with twice the
  # attention and 3 norms, two position tables 32*2, two final norms 16.
  parameters = 4224 * 16 + (4 * 256 + 1024 + 32) + (8 * 256 + 1024 + 48) + 2 * 64 + 2 * 16
  assert f"{parameters:,} parameters" in card
  for part in ("versions", "jax ", "8 x cpu", "mesh data=8", "582,017 tokens", "span_corruption", "FLOP per step",
               "memory", "adafactor", "learning rate 0.01", "random initialization", f"{tmp_path}/run"):  # fmt: skip
    assert part in card
  assert "train.steps = %TRAIN_STEPS" in card and "TRAIN_STEPS = 10" in card
  assert not (tmp_path / "run").exists()


def test_resuming_gives_the_same_bytes_as_running_through(t5like, steady, whole, half):
  out = t5like(*steady, f"--gin.MODEL_DIR={half}", "--gin.TRAIN_STEPS=4").stdout
  assert "starts from  its own checkpoint of step 2" in out and "new seed" not in out
  assert losses(whole) == losses(half)
  assert_same_bytes(parameters(whole), parameters(half))
  out = t5like(*steady, f"--gin.MODEL_DIR={half}", "--gin.TRAIN_STEPS=4").stdout
  assert "nothing left to train" in out


def test_nothing_is_compiled_between_steps(t5like, steady, use_devices, tmp_path):
  """Once a step was run, logged and saved, nothing is lowered for the next ones."""
  run = [*steady, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=8"]
  t5like(*run, "--dry_run")
  lowered, counts = [], {}
  jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: lowered.append(event) if event.endswith("jaxpr_to_mlir_module_duration") else None
  )
  count = Hook(every=1, action=lambda state: counts.update({int(state.step): len(lowered)}))
  with use_devices(1):
    train(configuration.build("train"), hooks=[count])
  assert list(counts) == list(range(1, 9)) and 0 < counts[5] == counts[8]


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_stopped_run_resumes_at_its_last_step(t5like, pretrain, tmp_path, number):
  folder = tmp_path / "run"
  command = [*pretrain, f"--gin.MODEL_DIR={folder}", "--gin.TRAIN_STEPS=100000", "--gin.CHECKPOINT_PERIOD=10"]
  process = start(command)
  wait_for(has_checkpoint(folder, 10), process)
  process.send_signal(number)
  (output,) = finish([process], status=128 + number)
  assert f"{number.name}: stopped and saved at step" in output
  newest = max(int(p.name) for p in (folder / "checkpoints").iterdir() if p.name.isdigit())
  out = t5like(*command[:-2], f"--gin.TRAIN_STEPS={newest + 1}").stdout
  assert f"its own checkpoint of step {newest}" in out
  assert (folder / f"checkpoints/{newest + 1}").is_dir()
  steps = [row["step"] for row in read_metrics(folder)]
  assert steps == sorted(set(steps))  # no step is recorded twice


@pytest.mark.slow
def test_a_run_whose_directory_is_removed_ends_with_an_error_and_writes_nothing_more(t5like, pretrain, tmp_path):
  folder = tmp_path / "run"

  def remove():
    wait_for(has_checkpoint(folder, 4))
    while folder.exists():  # a save may be under way
      shutil.rmtree(folder, ignore_errors=True)

  with concurrent.futures.ThreadPoolExecutor() as pool:
    removed = pool.submit(remove)
    run = [*pretrain, f"--gin.MODEL_DIR={folder}", "--gin.TRAIN_STEPS=100000", "--gin.CHECKPOINT_PERIOD=4"]
    assert "error: MODEL_DIR was removed during the run" in t5like(*run, status=2).stderr
    removed.result()
  assert not folder.exists()


@pytest.mark.slow
def test_a_run_resumed_with_another_seed_reports_and_follows_it(t5like, steady, whole, half):
  run = [*steady, f"--gin.MODEL_DIR={half}", "--gin.SEED=2"]
  out = t5like(*run, "--gin.TRAIN_STEPS=4").stdout
  assert "SEED = 2, was 0: data, noise and dropout follow the new seed from step 3 on" in out
  other, same = losses(half), losses(whole)
  assert all(other[step] == same[step] for step in (1, 2)) and all(other[step] != same[step] for step in (3, 4))
  assert "new seed" not in t5like(*run, "--gin.TRAIN_STEPS=5").stdout  # it was recorded


@pytest.mark.slow
def test_fine_tuning_starts_from_another_run_and_is_scored_by_decoding(t5like, finetune, whole, tmp_path, token_caches):
  arguments = [a for a in finetune if "INIT_FROM" not in a]
  run = [*arguments, f"--gin.INIT_FROM={whole}", f"--gin.MODEL_DIR={tmp_path}/second", "--gin.TRAIN_STEPS=4"]
  out = t5like(*run).stdout
  assert f"the parameters of {whole}/checkpoints/4" in out
  assert re.search(r"snli \(validation, 20 examples\) at step 4: accuracy \d+\.\d\d  \(always '\w+': \d+\.\d\d\)", out)
  assert out.count("snli hypothesis:") == 5 and "target 'neutral'" in out
  predictions = tmp_path / "second/predictions/snli-validation-4-first20.jsonl"
  rows = [json.loads(line) for line in predictions.read_text().splitlines()]
  assert len(rows) == 20 and set(rows[0]) == {"inputs", "prediction", "target"}
  scores = [row for row in read_metrics(tmp_path / "second") if row["kind"] == "eval/snli"]
  right = 100 * sum(r["prediction"] == r["target"] for r in rows) / 20
  assert scores == [{"step": 4, "kind": "eval/snli", "accuracy": right}]

  options = ["--examples=20", "--show=1", f"--cache_dir={token_caches}"]
  again = t5like("eval", f"--model_dir={tmp_path}/second", *options).stdout
  assert re.search(rf"accuracy +{right:.2f}", again) and again.count("snli hypothesis:") == 1
  assert "was already scored at this step" in t5like(*run).stdout


@pytest.mark.slow
def test_a_mesh_file_shards_the_model_and_does_not_change_the_loss(t5like, steady, whole, tmp_path):
  split = [*steady, "--gin_file=meshes/fsdp.gin", f"--gin.MODEL_DIR={tmp_path}/split", "--gin.TRAIN_STEPS=4"]
  assert "fsdp=8" in t5like(*split, devices=8).stdout
  one, eight = losses(whole), losses(tmp_path / "split")
  assert one.keys() == eight.keys()
  np.testing.assert_allclose(list(one.values()), list(eight.values()), rtol=1e-5)


SLOW_LM = pytest.param("lm", marks=pytest.mark.slow(reason="prefix_lm differs only in the attention of the prefix"))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [SLOW_LM, "prefix_lm", "shared"])
def test_the_papers_architectures_train_and_answer(t5like, finetune, tmp_path, architecture):
  size = [a for a in finetune if "NUM_ENCODER_LAYERS" not in a]
  layers = 1 if architecture == "shared" else 0
  t5like(
    size[0], size[1], f"--gin_file=models/t5/architectures/{architecture}.gin", *size[2:],
    f"--gin.NUM_ENCODER_LAYERS={layers}", f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=20",
    "--gin.FINETUNE_LEARNING_RATE=0.01", "--gin.LOG_PERIOD=5",
  )  # fmt: skip
  curve = losses(tmp_path / "run")
  assert curve[20] < curve[5] - 1  # three label words out of 4,224 pieces are soon learned
  assert len((tmp_path / "run/predictions/snli-validation-20-first20.jsonl").read_text().splitlines()) == 20


@pytest.mark.slow
def test_a_run_resumed_with_other_data_reports_the_changes(t5like, steady, half):
  run = [*steady, f"--gin.MODEL_DIR={half}", "--gin.LENGTHS={'inputs': 24}"]
  out = t5like(*run, "--gin.TRAIN_STEPS=3", "--gin.BATCH_SIZE=16").stdout
  assert "BATCH_SIZE = 16, was 8 up to step 2: rows 16 to 32 are skipped" in out
  assert "LENGTHS = {'inputs': 24}, was {'inputs': 32} up to step 2: earlier rows may repeat" in out
  assert "OBJECTIVE" not in out.split("----")[0]
  out = t5like(*run, "--gin.TRAIN_STEPS=4", "--gin.BATCH_SIZE=8", "--gin.NOISE_DENSITY=0.5").stdout
  assert "BATCH_SIZE = 8, was 16 up to step 3: rows 24 to 48 repeat" in out and "LENGTHS =" not in out.split("----")[0]
  assert re.search(r"OBJECTIVE = .*density=0.5.* was .*density=0.15.* up to step 3: different inputs and targets", out)
