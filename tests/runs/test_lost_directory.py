"""A run without `end_process` whose directory another run has taken over: it stops at the next step."""

import pytest

from t5like.errors import RunError
from t5like.experiments.reading import read_experiment
from t5like.runs import train
from t5like.training.guards import run_lock

pytestmark = pytest.mark.usefixtures("one_device")


def test_it_raises_at_the_next_step_and_saves_nothing(pretrain, tmp_path, monkeypatch):
  files = [argument.partition("=")[2] for argument in pretrain if argument.startswith("--gin_file=")]
  given = [argument.removeprefix("--gin.").split("=", 1) for argument in pretrain if argument.startswith("--gin.")]
  experiment = read_experiment(files, [*map(tuple, given), ("MODEL_DIR", str(tmp_path)), ("TRAIN_STEPS", "4")])
  real = run_lock.RunLock
  monkeypatch.setattr(run_lock, "RunLock", lambda *given: lost(real(*given)))
  with pytest.raises(RunError, match="another run took"):
    train(experiment)
  assert not list(tmp_path.glob("checkpoints/*"))


def lost(lock):
  lock.mark_lost()
  return lock
