"""A run in a notebook whose directory another run has taken over: it stops at the next step, and writes no more."""

import pytest

from t5like.errors import RunError
from t5like.experiments.reading import read_experiment
from t5like.runs.training import train_experiment
from t5like.training.guards import run_lock
from t5like.training.records.goodput import Goodput


def test_it_raises_at_the_next_step_and_saves_nothing(pretrain, tmp_path, monkeypatch):
  files = [argument.partition("=")[2] for argument in pretrain if argument.startswith("--gin_file=")]
  given = [argument.removeprefix("--gin.").split("=", 1) for argument in pretrain if argument.startswith("--gin.")]
  experiment = read_experiment(files, [*map(tuple, given), ("MODEL_DIR", str(tmp_path)), ("TRAIN_STEPS", "4")])
  real = run_lock.RunLock
  monkeypatch.setattr(run_lock, "RunLock", lambda *given: lost(real(*given)))
  with pytest.raises(RunError, match="another run took"):
    train_experiment(experiment, Goodput())
  assert not list(tmp_path.glob("checkpoints/*"))


def lost(lock):
  lock.lose()
  return lock
