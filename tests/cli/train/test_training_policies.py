"""Policies for non-finite steps, damaged checkpoints, early stopping and restoring: real runs of the command."""

import json
import shutil

import gin
import jax.numpy as jnp
import numpy as np
import pytest
from trainers import assert_same_bytes, cut_after, finish, losses, parameters, start, wait_for

from t5like import configuration
from t5like.models.t5 import T5
from t5like.runs.preparing import prepare
from t5like.training.checkpoints import checkpoint_steps
from t5like.training.records.metrics import read_metrics


class PoisonedT5(T5):
  """Encodes rows whose first tokens are `poison` as infinities."""

  poison: tuple[int, ...] = ()

  def encode(self, batch, deterministic=True):
    tokens = batch["encoder_input_tokens"][:, : len(self.poison)]
    poisoned = jnp.all(tokens == jnp.asarray(self.poison, tokens.dtype)[None, :], axis=1)
    return jnp.where(poisoned[:, None, None], jnp.inf, super().encode(batch, deterministic))


gin.external_configurable(PoisonedT5, "PoisonedT5")


@pytest.fixture
def poisoned(t5like, pretrain, tmp_path):
  """A run whose model fails only on the batch of the seventh step."""
  run = [*pretrain, "--gin.TRAIN_STEPS=12", "--gin.LOG_PERIOD=1", "--gin.CHECKPOINT_PERIOD=4"]
  t5like(*run, f"--gin.MODEL_DIR={tmp_path}/none", "--dry_run")
  batches = prepare(configuration.build("train"), dry_run=True).batches
  poison = tuple(map(int, batches[6]["encoder_input_tokens"][3][:12]))
  return [*run, "--gin.MODEL=@PoisonedT5()", "--gin.PoisonedT5.config=@TransformerConfig()",
          f"--gin.PoisonedT5.poison={poison}"], batches  # fmt: skip


def test_a_loss_that_is_not_finite_ends_the_run_and_saves_its_batch(t5like, poisoned, tmp_path):
  run, batches = poisoned
  done = t5like(*run, f"--gin.MODEL_DIR={tmp_path}/run", status=1)
  assert "not finite at step 7" in done.stderr and "number 6 of seed 0" in done.stderr
  assert "checkpoint 4" in done.stderr and checkpoint_steps(tmp_path / "run") == [4]
  with np.load(tmp_path / "run/not_finite/step-7-host-0.npz") as saved:
    assert all(np.array_equal(saved[name], array) for name, array in batches[6].items())


@pytest.mark.slow  # tests/training/test_step.py tests that such a step changes nothing
def test_a_step_that_is_not_finite_can_be_skipped(t5like, poisoned, tmp_path):
  run, _ = poisoned
  t5like(*run, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.NONFINITE=skip")
  rows = {row["step"]: row for row in read_metrics(tmp_path / "run") if row["kind"] == "train"}
  assert [step for step, row in rows.items() if row["skipped_steps"]] == [7] and rows[7]["loss"] is None
  assert rows[8]["parameter_norm"] == rows[7]["parameter_norm"] != rows[6]["parameter_norm"]  # before each update


def test_a_run_can_roll_back_and_skip_the_failed_batches(t5like, poisoned, tmp_path):
  run, _ = poisoned
  out = t5like(*run, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.NONFINITE=rollback").stdout
  assert "step 7 is not finite: rolling back to step 4" in out and "skipping 3 batches" in out
  assert json.loads((tmp_path / "run/skipped_batches.json").read_text()) == [[4, 3]]
  assert sorted(losses(tmp_path / "run")) == list(range(1, 13))
  # Stopped after the rollback and resumed, it trains on the same batches.
  cut_after(shutil.copytree(tmp_path / "run", tmp_path / "halves"), 8)
  t5like(*run, f"--gin.MODEL_DIR={tmp_path}/halves", "--gin.NONFINITE=rollback")
  assert losses(tmp_path / "halves") == losses(tmp_path / "run")
  assert_same_bytes(parameters(tmp_path / "halves"), parameters(tmp_path / "run"))


@pytest.mark.slow
def test_rollbacks_to_a_step_are_limited(t5like, pretrain, tmp_path):
  run = [*pretrain, "--gin.TRAIN_STEPS=12", "--gin.CHECKPOINT_PERIOD=4", "--gin.NONFINITE=rollback",
         "--gin.LEARNING_RATE=@chain()", "--gin.chain.schedules=[@constant_rate(), @linear()]",
         "--gin.chain.boundaries=[5]", "--gin.constant_rate.value=0.01", "--gin.linear.start=1e38"]  # fmt: skip
  done = t5like(*run, f"--gin.MODEL_DIR={tmp_path}/run", status=1)
  assert "after 3 rollbacks to step 4" in done.stderr and checkpoint_steps(tmp_path / "run") == [4]


@pytest.mark.slow
def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(t5like, pretrain, tmp_path):
  run = [*pretrain, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.LOG_PERIOD=1", "--gin.CHECKPOINT_PERIOD=2"]
  t5like(*run, "--gin.TRAIN_STEPS=6")
  before, bytes_of_6 = losses(tmp_path / "run"), parameters(tmp_path / "run")
  largest = max((tmp_path / "run/checkpoints/6").rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
  damaged = bytearray(largest.read_bytes())
  damaged[len(damaged) // 2] ^= 0x40
  largest.write_bytes(damaged)
  out = t5like(*run, "--gin.TRAIN_STEPS=6").stdout
  assert "checkpoint 6 is damaged" in out and "resuming from step 4" in out and largest.name in out
  assert (tmp_path / "run/checkpoints/damaged-6").is_dir()
  assert losses(tmp_path / "run") == before
  assert_same_bytes(parameters(tmp_path / "run"), bytes_of_6)


@pytest.mark.slow
def test_two_trainers_do_not_share_a_directory(t5like, pretrain, tmp_path):
  run = [*pretrain, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=100000", "--gin.CHECKPOINT_PERIOD=20"]
  first = start(run)
  try:
    wait_for(lambda: checkpoint_steps(tmp_path / "run"), first)
    refused = t5like(*run, status=2).stderr
    assert "another run is training in this directory" in refused and f"process {first.pid}" in refused
  finally:
    first.terminate()
  finish([first], status=143)


def test_a_run_stops_early_and_keeps_the_best_checkpoint(t5like, pretrain, tmp_path):
  run = [*pretrain, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=40", "--gin.EVAL_SPLIT=train",
         "--gin.EVAL_LOSS_PERIOD=2", "--gin.EVAL_LOSS_BATCHES=2", "--gin.CHECKPOINTS_KEPT=1",
         "--gin.LEARNING_RATE=@constant_rate()", "--gin.constant_rate.value=3.0",
         "--gin.EARLY_STOPPING.metric=eval_loss/novels/loss", "--gin.EARLY_STOPPING.patience=3",
         "--gin.KEEP.metric=eval_loss/novels/loss"]  # fmt: skip
  out = t5like(*run).stdout
  curve = {row["step"]: row["loss"] for row in read_metrics(tmp_path / "run") if row["kind"] == "eval_loss/novels"}
  best = min(curve, key=curve.get)
  assert max(curve) == best + 6 < 40  # three evaluations, two steps apart, without improvement
  assert f"stopped early at step {best + 6}" in out
  assert checkpoint_steps(tmp_path / "run") == [best, best + 6]
  assert "stopped early" in t5like(*run).stdout  # also when it is started again


def test_metrics_that_no_evaluation_computes_are_refused_at_the_start(t5like, finetune, tmp_path):
  run = [*finetune, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=4", "--gin.KEEP.best=1"]
  refused = t5like(*run, "--gin.KEEP.metric=eval/snly/accuracy", status=2).stderr
  assert "KEEP.metric = 'eval/snly/accuracy' is not computed" in refused and "eval/snli/accuracy" in refused
  assert "beams=-4 is invalid" in t5like(*run[:-1], "--gin.DECODING={'beams': -4}", status=2).stderr
  assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_starts_from_another_runs_state_or_its_parameters(t5like, pretrain, tmp_path):
  run = [*pretrain, "--gin.LOG_PERIOD=1"]
  t5like(*run, f"--gin.MODEL_DIR={tmp_path}/whole", "--gin.TRAIN_STEPS=6", "--gin.CHECKPOINT_PERIOD=3")
  out = t5like(*run, f"--gin.MODEL_DIR={tmp_path}/copy", f"--gin.RESTORE_FROM={tmp_path}/whole/checkpoints/3",
               "--gin.TRAIN_STEPS=6").stdout  # fmt: skip
  assert "checkpoints/3, with optimizer and step" in out
  assert {step: loss for step, loss in losses(tmp_path / "whole").items() if step > 3} == losses(tmp_path / "copy")
  assert_same_bytes(parameters(tmp_path / "copy"), parameters(tmp_path / "whole"))

  other = [*run, "--gin_file=optimizers/adamw.gin", f"--gin.MODEL_DIR={tmp_path}/other", "--gin.TRAIN_STEPS=1"]
  refused = t5like(*other, f"--gin.RESTORE_FROM={tmp_path}/whole", status=2).stderr
  assert "another optimizer" in refused and "ScaleByAdamState" in refused
  out = t5like(*other, f"--gin.RESTORE_FROM={tmp_path}/whole", "--gin.RESTORE.parameters_only=True").stdout
  assert "optimizer and step fresh" in out and list(losses(tmp_path / "other")) == [1]


@pytest.mark.slow
def test_microbatches_norms_and_a_profile_from_gin(t5like, pretrain, tmp_path):
  run = [*pretrain, "--gin.TRAIN_STEPS=4", "--gin.LOG_PERIOD=1", "--gin.DROPOUT_RATE=0.0", "--gin.MESH.data=1",
         "--gin.MESH.fsdp=1", "--gin.MESH.tensor=-1", "--gin.NUM_HEADS=8", "--gin.BATCH_SIZE=16"]  # fmt: skip
  t5like(*run, f"--gin.MODEL_DIR={tmp_path}/plain")
  out = t5like(*run, f"--gin.MODEL_DIR={tmp_path}/parts", "--gin.MICROBATCHES=4", "--gin.NORMS_PERIOD=2",
               "--gin.PROFILE_STEPS=(2, 3)").stdout  # fmt: skip
  assert "in 4 microbatches" in out and "profile of steps 2 to 3" in out
  plain, parts = losses(tmp_path / "plain"), losses(tmp_path / "parts")
  np.testing.assert_allclose(list(parts.values()), list(plain.values()), rtol=1e-5)
  norms = [row for row in read_metrics(tmp_path / "parts") if row["kind"] == "norms"]
  assert [row["step"] for row in norms] == [2, 4] and norms[0]["gradient/token_embedder/embedding"] > 0
  assert (tmp_path / "parts/profile").is_dir()
  refused = t5like(*run, f"--gin.MODEL_DIR={tmp_path}/no", "--gin.MICROBATCHES=3", status=2).stderr
  assert "3" in refused and "--gin.MICROBATCHES=" in refused
