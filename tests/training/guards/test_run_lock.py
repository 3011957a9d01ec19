"""One trainer per directory; stale locks of dead machines are taken over. For kill -9 see test_checkpoints_failures."""

import json
import os
import socket
import time

import pytest

from t5like.errors import RunError, UserError
from t5like.training.guards import run_lock
from t5like.training.guards.run_lock import LOCK, RunLock, sole_trainer
from t5like.training.records.model_dir import check_model_dir


def test_a_second_trainer_is_refused_with_the_holder_of_the_lock(tmp_path):
  folder = tmp_path / "new/run"
  with sole_trainer(folder):
    with pytest.raises(UserError, match="another run is training in this directory") as error, sole_trainer(folder):
      pass
    assert error.value.lines["by"] == f"process {os.getpid()} on {socket.gethostname()}"
    assert time.strftime("%Y-%m-%d") in error.value.lines["since"]
  with sole_trainer(folder):
    pass
  assert not (folder / LOCK).exists()


def test_an_error_in_the_run_frees_the_directory(tmp_path):
  with pytest.raises(ZeroDivisionError), sole_trainer(tmp_path):
    raise ZeroDivisionError
  with sole_trainer(tmp_path):
    pass


def test_a_lock_of_another_machine_counts_until_it_is_stale(tmp_path):
  lock = tmp_path / LOCK
  lock.write_text(json.dumps({"host": "elsewhere", "pid": 7, "since": "then"}))
  os.utime(lock, (0, time.time() - 100))
  with pytest.raises(UserError, match="process 7 on elsewhere"), sole_trainer(tmp_path):
    pass
  os.utime(lock, (0, time.time() - 190))
  with sole_trainer(tmp_path):
    assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_the_holder_has_a_heartbeat(tmp_path, monkeypatch):
  monkeypatch.setattr(run_lock, "_HEARTBEAT", 0.02)
  with sole_trainer(tmp_path):
    os.utime(tmp_path / LOCK, (0, 0))
    deadline = time.monotonic() + 60
    while (tmp_path / LOCK).stat().st_mtime < time.time() - 60:
      assert time.monotonic() < deadline
      time.sleep(0.01)


def test_the_lock_of_a_killed_run_does_not_make_its_directory_foreign(tmp_path):
  (tmp_path / LOCK).write_text("{}")
  (tmp_path / "config.gin.0123456789ab.tmp").write_text("half of")
  assert check_model_dir(tmp_path) == tmp_path


def test_a_run_that_lost_its_directory_ends_the_process_or_raises(tmp_path, capfd):
  ended = []
  RunLock(tmp_path, ended.append).mark_lost()
  assert ended == [1] and f"error: another run took over {tmp_path}" in capfd.readouterr().err
  with sole_trainer(tmp_path) as lock:
    lock.check()
    lock.mark_lost()
    with pytest.raises(RunError, match="another run took"):
      lock.check()
