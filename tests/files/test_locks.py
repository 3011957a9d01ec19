"""`hold`: waiting, giving up, heartbeats, and the end of a block. For killed holders, see the users of locks."""

import json
import math
import os
import threading
import time

import pytest

from t5like.files import locks
from t5like.files.lease import LeaseLost
from t5like.files.locks import LockHeld, hold

TIMEOUT = 60


def test_a_second_holder_is_refused_and_can_identify_the_first(tmp_path):
  path = tmp_path / "new/folder/lock"
  with hold(path, 60.0, about={"since": "noon"}):
    with pytest.raises(LockHeld, match=f"process {os.getpid()} on ") as error, hold(path, 60.0):
      pass
    assert error.value.holder["since"] == "noon"
  assert not path.exists()


def test_an_error_in_the_block_releases_the_lock(tmp_path):
  with pytest.raises(ZeroDivisionError), hold(tmp_path / "lock", 60.0):
    raise ZeroDivisionError
  with hold(tmp_path / "lock", 60.0):
    pass


def test_a_lock_whose_file_was_removed_is_released(tmp_path):
  with hold(tmp_path / "lock", 60.0):
    (tmp_path / "lock").unlink()
  with hold(tmp_path / "lock", 60.0):
    pass


def test_it_waits_until_the_lock_is_stale(tmp_path):
  path, seen = tmp_path / "lock", []
  path.write_text(json.dumps({"host": "elsewhere", "pid": 7}))

  def on_wait(lock, holder):
    seen.append((lock.path, holder["pid"]))
    if len(seen) == 3:
      os.utime(path, (0, time.time() - 31))

  with hold(path, 30.0, wait=math.inf, poll_seconds=0.01, on_wait=on_wait):
    assert seen == [(path, 7)] * 3 and json.loads(path.read_text())["pid"] == os.getpid()


def test_it_gives_up_at_the_deadline_or_when_the_caller_does(tmp_path):
  path = tmp_path / "lock"
  path.write_text(json.dumps({"host": "elsewhere", "pid": 7}))
  start = time.monotonic()
  with pytest.raises(LockHeld), hold(path, 30.0, wait=0.1, poll_seconds=0.01):
    pass
  assert 0.1 <= time.monotonic() - start < TIMEOUT

  def give_up(lock, holder):
    raise LockHeld(holder)

  with pytest.raises(LockHeld), hold(path, 30.0, wait=math.inf, on_wait=give_up):
    pass


def test_a_thread_sends_heartbeats_and_reports_a_lost_lock(tmp_path, monkeypatch):
  path, taken_over, lost, touch = tmp_path / "lock", threading.Event(), threading.Event(), locks.FileLock.touch

  def touch_or_lose(lock):
    if taken_over.is_set():
      raise LeaseLost(str(lock.path))
    touch(lock)

  monkeypatch.setattr(locks.FileLock, "touch", touch_or_lose)
  with hold(path, 60.0, heartbeat=0.02, on_lost=lost.set):
    os.utime(path, (0, 0))
    deadline = time.monotonic() + TIMEOUT
    while path.stat().st_mtime < time.time() - 60:
      assert time.monotonic() < deadline
      time.sleep(0.01)
    assert not lost.is_set()
    taken_over.set()
    assert lost.wait(TIMEOUT)
