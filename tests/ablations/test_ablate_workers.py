"""Several worker processes on one machine: shared devices, restarts and exit statuses."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5like.ablations.sweep import local_workers as ablate_workers
from t5like.ablations.sweep.local_workers import DEVICE_LOST, check_workers, mps_hint, run_workers
from t5like.errors import UserError

# A worker that records its environment and then behaves as requested.
WORKER = """
import os, signal, sys, time
from pathlib import Path
folder, behavior = Path(sys.argv[1]), sys.argv[2]
if sys.argv[-1] == "--prepare_only":
  (folder / "prepared").touch()
  sys.exit(2 if behavior == "no data" else 0)
assert (folder / "prepared").is_file()
started = folder / f"started-{time.monotonic_ns()}-{os.getpid()}"
started.write_text(os.environ["T5LIKE_DEVICE_SHARE"] + " " + os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"])
print("at work", flush=True)
first = not (folder / "first").exists()
(folder / "first").touch()
if behavior == "killed once" and first:
  os.kill(os.getpid(), signal.SIGKILL)
if behavior == "waits":
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  (folder / f"ready-{os.getpid()}").touch()
  time.sleep(120)
sys.exit({"lost": 75, "failures": 1}.get(behavior, 0))
"""


def command(folder: Path, behavior: str) -> list[str]:
  return [sys.executable, "-c", WORKER, str(folder), behavior]


@pytest.fixture(autouse=True)
def _own_memory(monkeypatch):
  monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)


def starts(folder: Path) -> list[str]:
  return [path.read_text() for path in sorted(folder.glob("started-*"))]


def test_workers_share_device_and_memory_and_prefix_their_output(tmp_path, capfd):
  assert run_workers(command(tmp_path, "finishes"), 4) == 0
  assert starts(tmp_path) == ["0.25 0.225"] * 4
  assert sorted(capfd.readouterr().out.splitlines()) == [f"[{number}] at work" for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
  ("behavior", "status", "started"),
  [
    ("killed once", 0, 3),
    ("lost", DEVICE_LOST, 2 * (1 + ablate_workers._RESTARTS)),
    ("failures", 1, 2),  # of runs: a restarted worker would retry them forever
    ("no data", 2, 0),
  ],
)
def test_workers_are_restarted_after_recoverable_failures(tmp_path, behavior, status, started):
  assert run_workers(command(tmp_path, behavior), 2) == status
  assert len(starts(tmp_path)) == started


def test_a_signal_reaches_all_workers_and_none_is_restarted(tmp_path):
  call = f"run_workers({command(tmp_path, 'waits')}, 2)"
  code = f"import sys; from t5like.ablations.sweep.local_workers import run_workers; sys.exit({call})"
  process = subprocess.Popen([sys.executable, "-c", code])
  deadline = time.monotonic() + 60
  while len(list(tmp_path.glob("ready-*"))) < 2:
    assert time.monotonic() < deadline and process.poll() is None
    time.sleep(0.05)
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=60) == 128 + signal.SIGTERM
  assert len(starts(tmp_path)) == 2
  for path in tmp_path.glob("ready-*"):
    with pytest.raises(ProcessLookupError):
      os.kill(int(path.name.removeprefix("ready-")), 0)


def test_workers_are_for_one_machine():
  check_workers(8, 3, (None, None, None))
  check_workers(1, 1, ("host:1234", 2, 0))
  with pytest.raises(UserError, match="invalid workers: 0"):
    check_workers(0, 1, (None,))
  with pytest.raises(UserError, match="one machine"):
    check_workers(2, 1, ("host:1234", None, None))
  with pytest.raises(UserError, match="together is for one machine"):
    check_workers(1, 2, ("host:1234", None, None))


def test_a_hint_is_printed_if_gpu_processes_would_take_turns(tmp_path):
  assert mps_hint(driver=tmp_path / "none", pipes=tmp_path) == ""
  assert "nvidia-cuda-mps-control -d" in mps_hint(driver=tmp_path, pipes=tmp_path)
  (tmp_path / "control").touch()
  assert mps_hint(driver=tmp_path, pipes=tmp_path) == ""
