"""`t5like train` as a user runs it: real processes, real checkpoints, real signals."""

import json
import re
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from trainers import finish, has_checkpoint, start, wait_for

from t5like.training.checkpoints import load_parameters
from t5like.training.records.metrics import read_metrics

REPOSITORY = Path(__file__).resolve().parents[2]


def losses(model_dir):
  return {row["step"]: row["loss"] for row in read_metrics(model_dir) if row["kind"] == "train"}


def test_a_run_from_any_directory_writes_everything_it_should(t5like_process, pretrain, tmp_path):
  run = [*pretrain, "--gin.MODEL_DIR=run", "--gin.TRAIN_STEPS=60", "--gin.LOG_PERIOD=10"]
  out = t5like_process(*run, cwd=tmp_path).stdout
  folder = tmp_path / "run"
  assert re.search(r"step 60/60  loss \d+\.\d+ .* tokens/s .* ETA", out)
  assert str(folder) in out
  names = {p.name for p in folder.iterdir()}
  assert {"checkpoints", "config.gin", "run_card.txt", "metrics.jsonl", "loss.png"} <= names
  assert any(name.startswith("events.out.tfevents") for name in names)
  assert (folder / "checkpoints/60/params").is_dir()
  assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
  curve = losses(folder)
  assert list(curve) == [10, 20, 30, 40, 50, 60]
  assert curve[60] < curve[10] - 0.5  # it learns: from ln(4224) = 8.3 towards the frequencies of words


def test_the_run_card_summarizes_the_run(t5like, pretrain, tmp_path):
  card = t5like(*pretrain, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=10", "--dry_run").stdout
  # By hand: embedding 4224*16, an encoder layer 4*16*16 + 2*16*32 + 2*16 norms, a decoder layer with twice the
  # attention and 3 norms, two position tables 32*2, two final norms 16.
  parameters = 4224 * 16 + (4 * 256 + 1024 + 32) + (8 * 256 + 1024 + 48) + 2 * 64 + 2 * 16
  assert f"{parameters:,} parameters" in card
  for part in ("versions", "jax ", "8 x cpu", "mesh data=8", "582,017 tokens", "span_corruption", "FLOP per step",
               "memory", "adafactor", "learning rate 0.01", "random initialization", f"{tmp_path}/run"):  # fmt: skip
    assert part in card
  assert "train.steps = %TRAIN_STEPS" in card and "TRAIN_STEPS = 10" in card
  assert not (tmp_path / "run").exists()


def test_resuming_gives_the_same_bytes_as_running_through(t5like, pretrain, tmp_path):
  uninterrupted = [*pretrain, f"--gin.MODEL_DIR={tmp_path}/whole", "--gin.CHECKPOINT_PERIOD=4"]
  halves = [*pretrain, f"--gin.MODEL_DIR={tmp_path}/halves", "--gin.CHECKPOINT_PERIOD=4"]
  t5like(*uninterrupted, "--gin.TRAIN_STEPS=8")
  t5like(*halves, "--gin.TRAIN_STEPS=4")
  out = t5like(*halves, "--gin.TRAIN_STEPS=8").stdout
  assert "starts from  its own checkpoint of step 4" in out
  assert losses(tmp_path / "whole") == losses(tmp_path / "halves")
  a, b = load_parameters(tmp_path / "whole"), load_parameters(tmp_path / "halves")
  flat = lambda tree: {k: v for k, v in _leaves(tree)}  # noqa: E731
  assert flat(a).keys() == flat(b).keys()
  assert all(np.array_equal(flat(a)[k], flat(b)[k]) for k in flat(a))
  out = t5like(*halves, "--gin.TRAIN_STEPS=8").stdout
  assert "nothing left to train" in out


def test_nothing_is_compiled_between_steps(t5like, pretrain, tmp_path):
  """A run of three times the steps, rows and saves lowers the same number of programs."""
  lowered = []
  jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: lowered.append(event) if event.endswith("jaxpr_to_mlir_module_duration") else None
  )
  counts = []
  periods = ["--gin.NORMS_PERIOD=2", "--gin.CHECKPOINT_PERIOD=2", "--gin.LOG_PERIOD=1"]
  for steps in (4, 4, 12):  # the first run also compiles shared programs
    before = len(lowered)
    t5like(*pretrain, *periods, f"--gin.MODEL_DIR={tmp_path}/{len(counts)}", f"--gin.TRAIN_STEPS={steps}")
    counts.append(len(lowered) - before)
  assert counts[2] == counts[1] > 0


def _leaves(tree, path=()):
  for key, value in tree.items():
    if isinstance(value, dict):
      yield from _leaves(value, (*path, key))
    else:
      yield (*path, key), np.asarray(value)


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
  out = t5like(*command[:-2], f"--gin.TRAIN_STEPS={newest + 5}").stdout
  assert f"its own checkpoint of step {newest}" in out
  assert (folder / f"checkpoints/{newest + 5}").is_dir()
  steps = [row["step"] for row in read_metrics(folder)]
  assert steps == sorted(set(steps))  # no step is recorded twice


def test_a_run_whose_directory_is_removed_ends_with_an_error_and_writes_nothing_more(pretrain, tmp_path):
  folder = tmp_path / "run"
  command = [*pretrain, f"--gin.MODEL_DIR={folder}", "--gin.TRAIN_STEPS=100000", "--gin.CHECKPOINT_PERIOD=10"]
  process = start(command)
  wait_for(has_checkpoint(folder, 10), process)
  while folder.exists():  # a save may be under way
    shutil.rmtree(folder, ignore_errors=True)
  (output,) = finish([process], status=2)
  assert "error: MODEL_DIR was removed during the run" in output and "Traceback" not in output
  assert not folder.exists()


def test_a_run_resumed_with_another_seed_reports_and_follows_it(t5like, pretrain, tmp_path):
  run = [*pretrain, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.LOG_PERIOD=1", "--gin.BATCH_SIZE=8"]
  t5like(*run, "--gin.TRAIN_STEPS=2", "--gin.SEED=1")
  shutil.copytree(tmp_path / "run", tmp_path / "same")
  out = t5like(*run, "--gin.TRAIN_STEPS=4", "--gin.SEED=2").stdout
  assert "SEED = 2, was 1" in out and "from step 3 on" in out
  out = t5like(*run, "--gin.TRAIN_STEPS=4", "--gin.SEED=1", f"--gin.MODEL_DIR={tmp_path}/same").stdout
  assert "follow the new seed" not in out
  other, same = losses(tmp_path / "run"), losses(tmp_path / "same")
  assert all(other[step] == same[step] for step in (1, 2)) and all(other[step] != same[step] for step in (3, 4))
  out = t5like(*run, "--gin.TRAIN_STEPS=5", "--gin.SEED=2").stdout
  assert "follow the new seed" not in out  # it was recorded


def test_fine_tuning_starts_from_another_run_and_is_scored_by_decoding(
  t5like, pretrain, finetune, tmp_path, token_caches
):
  t5like(*pretrain, f"--gin.MODEL_DIR={tmp_path}/first", "--gin.TRAIN_STEPS=2")
  arguments = [a for a in finetune if "INIT_FROM" not in a]
  run = [*arguments, f"--gin.INIT_FROM={tmp_path}/first", f"--gin.MODEL_DIR={tmp_path}/second", "--gin.TRAIN_STEPS=4"]
  out = t5like(*run).stdout
  assert f"the parameters of {tmp_path}/first/checkpoints/2" in out
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


@pytest.mark.slow  # tests/parallel/test_compiled_graphs.py has it for every preset
def test_a_run_on_eight_devices_has_the_losses_of_one(t5like_process, pretrain, tmp_path):
  for devices in (1, 8):
    t5like_process(
      *pretrain, f"--gin.MODEL_DIR={tmp_path}/{devices}", "--gin.TRAIN_STEPS=6", "--gin.MESH.fsdp=-1",
      "--gin.MESH.data=1", devices=devices,
    )  # fmt: skip
  one, eight = losses(tmp_path / "1"), losses(tmp_path / "8")
  assert one.keys() == eight.keys()
  np.testing.assert_allclose(list(one.values()), list(eight.values()), rtol=1e-5)


def test_a_mesh_file_shards_the_model_and_does_not_change_the_loss(t5like, pretrain, tmp_path):
  for name, mesh in (("plain", []), ("split", ["--gin_file=meshes/fsdp.gin"])):
    out = t5like(*pretrain, *mesh, f"--gin.MODEL_DIR={tmp_path}/{name}", "--gin.TRAIN_STEPS=4").stdout
    assert ("fsdp=8" in out) == (name == "split")
  plain, split = losses(tmp_path / "plain"), losses(tmp_path / "split")
  np.testing.assert_allclose(list(plain.values()), list(split.values()), rtol=1e-5)


SLOW_LM = pytest.param("lm", marks=pytest.mark.slow(reason="prefix_lm differs only in the attention of the prefix"))


@pytest.mark.parametrize("architecture", [SLOW_LM, "prefix_lm", "shared"])
def test_the_papers_architectures_train_and_answer(t5like, finetune, tmp_path, architecture):
  size = [a for a in finetune if "NUM_ENCODER_LAYERS" not in a]
  layers = 1 if architecture == "shared" else 0
  t5like(
    size[0], size[1], f"--gin_file=models/t5/architectures/{architecture}.gin", *size[2:],
    f"--gin.NUM_ENCODER_LAYERS={layers}", f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=40",
    "--gin.FINETUNE_LEARNING_RATE=0.01", "--gin.LOG_PERIOD=10",
  )  # fmt: skip
  curve = losses(tmp_path / "run")
  assert curve[40] < curve[10] - 1  # three label words out of 4,224 pieces are soon learned
  assert len((tmp_path / "run/predictions/snli-validation-40-first20.jsonl").read_text().splitlines()) == 20


def test_a_run_resumed_with_other_data_reports_the_changes(t5like, pretrain, tmp_path):
  run = [*pretrain, f"--gin.MODEL_DIR={tmp_path}/run"]
  t5like(*run, "--gin.TRAIN_STEPS=2", "--gin.BATCH_SIZE=16")
  out = t5like(*run, "--gin.TRAIN_STEPS=3", "--gin.BATCH_SIZE=8", "--gin.LENGTHS={'inputs': 24}").stdout
  assert "BATCH_SIZE = 8, was 16 up to step 2: rows 16 to 32 repeat" in out
  assert "LENGTHS = {'inputs': 24}, was {'inputs': 32} up to step 2: earlier rows may repeat" in out
  out = t5like(*run, "--gin.TRAIN_STEPS=4", "--gin.BATCH_SIZE=16", "--gin.LENGTHS={'inputs': 24}").stdout
  assert (
    "BATCH_SIZE = 16, was 8 up to step 3: rows 24 to 48 are skipped" in out and "LENGTHS =" not in out.split("----")[0]
  )
