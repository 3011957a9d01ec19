"""Valid model directories, and interruption by signals."""

import os
import signal

import pytest

from t5like.errors import UserError
from t5like.training.guards.interruption import Interruption
from t5like.training.records.model_dir import check_model_dir


def test_new_empty_and_own_directories_are_accepted(tmp_path):
  assert check_model_dir(tmp_path / "a/b/c") == tmp_path / "a/b/c"
  assert not (tmp_path / "a").exists()  # the check creates nothing
  assert check_model_dir(tmp_path) == tmp_path
  (tmp_path / "config.gin").write_text("x = 1")
  assert check_model_dir(tmp_path) == tmp_path
  assert [p.name for p in tmp_path.iterdir()] == ["config.gin"]


def test_the_home_directory_is_expanded(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert check_model_dir("~/runs/x") == tmp_path / "runs/x"


def test_foreign_directories_are_refused(tmp_path):
  (tmp_path / "photo.jpg").write_text("")
  with pytest.raises(UserError, match="has other files"):
    check_model_dir(tmp_path)


def test_a_run_killed_before_its_configuration_starts_again(tmp_path):
  for name in ("checkpoints", "trainer.lock"):
    (tmp_path / name).mkdir()
  assert check_model_dir(tmp_path) == tmp_path
  (tmp_path / "checkpoints/10").mkdir()
  with pytest.raises(UserError, match="has other files"):
    check_model_dir(tmp_path)


def test_the_first_signal_is_recorded_and_the_second_takes_effect():
  with Interruption() as interruption:
    assert not interruption.requested
    os.kill(os.getpid(), signal.SIGINT)
    assert interruption.signal == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
