"""Runs of one shape in one program: each leaves what it leaves when trained alone."""

import dataclasses
import signal
import threading
import time

import jax
import numpy as np
import pytest
from jax.experimental import io_callback

from t5like.errors import UserError
from t5like.experiments.reading import read_experiment
from t5like.runs import train, train_together
from t5like.training.checkpoints import checkpoint_steps, load_parameters
from t5like.training.guards.run_lock import sole_trainer
from t5like.training.records.goodput import FILE, read_attempts
from t5like.training.records.metrics import read_metrics
from t5like.training.step import train_step

pytestmark = pytest.mark.usefixtures("one_device")
# With dropout, to check that each run draws its own.
MODEL = {
  "EMBED_DIM": 16, "MLP_DIM": 32, "HEAD_DIM": 8, "NUM_ENCODER_LAYERS": 1, "NUM_DECODER_LAYERS": 1, "DROPOUT_RATE": 0.1,
  "BATCH_SIZE": 4, "CHECKPOINT_PERIOD": 0,
}  # fmt: skip


def experiment(arguments, folder, objective=None, **settings):
  files = [a.partition("=")[2] for a in arguments if a.startswith("--gin_file=")]
  files += [f"objectives/{objective}.gin"] if objective else []
  given = [tuple(a.removeprefix("--gin.").split("=", 1)) for a in arguments if a.startswith("--gin.")]
  changes = MODEL | {"TRAIN_STEPS": 4, "MODEL_DIR": folder, "LOG_PERIOD": 1} | settings
  return read_experiment(files, [*given, *((name, str(value)) for name, value in changes.items())])


def losses(folder):
  return [row["loss"] for row in read_metrics(folder) if row["kind"] == "train"]


def assert_same_run(one, other):
  """Compares the losses of all steps, and the last checkpoints."""
  assert len(losses(one)) == 4
  np.testing.assert_allclose(losses(one), losses(other), rtol=2e-5)
  assert checkpoint_steps(one)[-1] == checkpoint_steps(other)[-1] == 4
  for ours, theirs in zip(*map(jax.tree.leaves, (load_parameters(one), load_parameters(other))), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5)


@pytest.fixture(scope="module")
def pretrained(pretrain, tmp_path_factory):
  """Trains two objectives of the same lengths with different seeds, one for fewer steps, and an invalid run."""
  folder = tmp_path_factory.mktemp("together")
  alike = {"a": ("mass_style", 0), "b": ("bert_style", 1)}
  of = lambda kind: [experiment(pretrain, folder / kind / n, o, SEED=s) for n, (o, s) in alike.items()]  # noqa: E731
  other = experiment(pretrain, folder / "together/c", "mass_style", TRAIN_STEPS=1)
  results = train_together([*of("together"), other, experiment(pretrain, folder / "d", VOCAB_SIZE=8)])
  train(of("alone")[1])  # of another objective and seed than the first run of the group
  return folder, results


def test_runs_in_one_program_are_the_runs_alone(pretrained):
  folder, results = pretrained
  assert_same_run(folder / "together/b", folder / "alone/b")
  for name in "ab":
    for file in ("config.gin", "run_card.txt", "run_card.json", "loss.png"):
      assert (folder / "together" / name / file).is_file()
  assert len({losses(folder / "together" / name)[0] for name in "ab"}) == 2  # not two copies of one run
  assert [result.step for result in results[:3]] == [4, 4, 1]
  assert results[1].metrics["loss"] == losses(folder / "together/b")[-1]


def test_only_runs_of_one_shape_share_a_program(pretrained):
  folder, _ = pretrained
  shares = {n: read_attempts(folder / "together" / n / FILE)[-1].get("device_share") for n in "abc"}
  assert shares == {"a": 0.5, "b": 0.5, "c": None}


def test_an_invalid_run_does_not_stop_the_others(pretrained):
  folder, results = pretrained
  assert isinstance(results[3], UserError) and not (folder / "d").exists()


@pytest.mark.slow
def test_a_group_resumes_from_the_checkpoints_of_its_runs(pretrained, pretrain, tmp_path):
  folder, _ = pretrained
  for steps in (2, 4):
    runs = [("a", "mass_style", 0), ("b", "bert_style", 1)]
    found = train_together([experiment(pretrain, tmp_path / n, o, SEED=s, TRAIN_STEPS=steps) for n, o, s in runs])
    assert [result.step for result in found] == [steps, steps]
  for name in "ab":
    assert_same_run(tmp_path / name, folder / "together" / name)
    assert len(read_attempts(tmp_path / name / FILE)) == 2


@pytest.mark.slow
def test_evaluations_of_a_group_are_those_of_its_runs(pretrained, finetune, tmp_path):
  folder, _ = pretrained
  more = dict(EVAL_PERIOD=2, EVAL_SPLIT="'validation'", EVAL_LOSS_PERIOD=4)
  of = lambda kind, n: experiment(  # noqa: E731
    finetune, tmp_path / kind / n, INIT_FROM=f"'{folder / 'together' / n}'", **more
  )
  assert [r.step for r in train_together([of("together", "a"), of("together", "b")])] == [4, 4]
  train(of("alone", "b"))
  ours, theirs = (
    [row for row in read_metrics(tmp_path / kind / "b") if row["kind"].startswith("eval")]
    for kind in ("together", "alone")
  )
  assert [row["kind"] for row in ours] == ["eval/snli", "eval_loss/snli", "eval/snli"]
  for one, other in zip(ours, theirs, strict=True):
    assert one.pop("kind") == other.pop("kind") and one == pytest.approx(other, rel=2e-5)


def test_the_runs_of_a_group_that_fails_are_trained_alone(pretrain, tmp_path):
  """One directory is in use: the other run must not suffer."""
  runs = [experiment(pretrain, tmp_path / n, "mass_style", SEED=s, TRAIN_STEPS=1) for s, n in enumerate("ab")]
  with sole_trainer(tmp_path / "b"):
    first, second = train_together(runs)
  assert first.step == 1 and checkpoint_steps(tmp_path / "a") == [1]
  assert isinstance(second, UserError) and not checkpoint_steps(tmp_path / "b")


def test_a_signal_ends_all_runs_of_a_group_that_is_trained_alone(pretrain, tmp_path):
  """One directory is in use, so that the runs are trained alone; then the first is interrupted."""
  runs = [experiment(pretrain, tmp_path / n, "mass_style", SEED=s, TRAIN_STEPS=3000) for s, n in enumerate("abc")]

  def interrupt():
    while not (tmp_path / "a/metrics.jsonl").exists() or not losses(tmp_path / "a"):
      time.sleep(0.05)
    signal.raise_signal(signal.SIGUSR1)

  threading.Thread(target=interrupt, daemon=True).start()
  with sole_trainer(tmp_path / "c"):
    first, *others = train_together(runs, signals=[signal.SIGUSR1])
  assert first.signal == signal.SIGUSR1 and checkpoint_steps(tmp_path / "a")
  assert others == [None, None] and not (tmp_path / "b").exists()


def test_a_signal_in_the_last_step_does_not_start_another_run(pretrain, tmp_path):
  """The run is finished; what would follow it is not started."""

  def interrupt():
    signal.raise_signal(signal.SIGUSR1)
    return np.float32(1.0)

  def step(*arguments):
    state, metrics = train_step(*arguments)
    return state, metrics | {"interrupted": io_callback(interrupt, jax.ShapeDtypeStruct((), np.float32))}

  runs = [
    experiment(pretrain, tmp_path / name, "mass_style", TRAIN_STEPS=steps) for name, steps in (("a", 1), ("b", 2))
  ]
  runs = [dataclasses.replace(run, step=step) for run in runs]
  first, other = train_together(runs, signals=[signal.SIGUSR1])
  assert (first.stopped, first.step, first.signal, other) == ("finished", 1, signal.SIGUSR1, None)
  assert checkpoint_steps(tmp_path / "a") == [1] and not (tmp_path / "b").exists()
