"""A run has at most one worker, whichever process dies when."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from t5like.ablations.sweep.claims import Claims

REPOSITORY = Path(__file__).resolve().parents[2]


def start(folder, name):
  return subprocess.Popen(
    [sys.executable, Path(__file__).with_name("claim_process.py"), folder, name],
    env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    stdout=subprocess.PIPE,
    text=True,
  )


def test_a_killed_worker_is_replaced_and_a_live_one_is_not(tmp_path):
  worker = start(tmp_path, "run")
  assert worker.stdout.readline() == "taken\n"
  claims = Claims(tmp_path)
  assert claims.take("run") is None
  assert claims.holder("run")["pid"] == worker.pid
  assert claims.take("other") is not None
  worker.send_signal(signal.SIGKILL)
  worker.wait()
  assert claims.holder("run") is None
  with claims.take("run") as claim:  # immediately: the process is known to be gone
    assert claim.is_ours
    assert claims.take("run") is None
  assert claims.take("run") is not None  # released


def test_only_one_of_many_takes_over_a_stale_claim(tmp_path):
  (tmp_path / "run.1").write_text(json.dumps({"place": "elsewhere", "pid": 1, "began": 1}))
  os.utime(tmp_path / "run.1", (time.time() - 1000,) * 2)
  taken, barrier = [], threading.Barrier(8)

  def contend():
    barrier.wait()
    if claim := Claims(tmp_path).take("run"):
      taken.append(claim)

  threads = [threading.Thread(target=contend) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(taken) == 1


def test_a_claim_from_another_machine_is_stale_without_heartbeats(tmp_path):
  claims = Claims(tmp_path, stale_after_seconds=30.0)
  (tmp_path / "run.1").write_text(json.dumps({"place": "elsewhere", "pid": os.getpid(), "began": 1}))
  assert claims.take("run") is None
  os.utime(tmp_path / "run.1", (time.time() - 31,) * 2)
  second = claims.take("run")
  assert second is not None
  # If the first worker was only slow, it must not write its result any more.
  from t5like.ablations.sweep.claims import Claim

  assert not Claim(claims, "run", 1, tmp_path / "run.1", 1.0).is_ours and second.is_ours


def test_a_heartbeat_keeps_a_claim_alive(tmp_path):
  claims = Claims(tmp_path, heartbeat=0.02, stale_after_seconds=0.5)
  with claims.take("run"):
    path = tmp_path / "run.1"
    holder = json.loads(path.read_text())
    path.write_text(json.dumps({**holder, "place": "elsewhere"}))  # as seen from another machine
    os.utime(path, (time.time() - 100,) * 2)
    deadline = time.monotonic() + 10
    while claims.holder("run") is None and time.monotonic() < deadline:
      time.sleep(0.01)
    assert claims.holder("run") is not None


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_claim_that_is_being_written_is_respected(tmp_path, text):
  (tmp_path / "run.1").write_text(text)
  assert Claims(tmp_path).take("run") is None
