"""Real processes that hang in different ways, and some that do not. They run concurrently, as most only wait."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5like.training.guards.watchdog import STALLED, Watchdog

REPOSITORY = Path(__file__).resolve().parents[3]

HANGS = {
  "python": "while True: stuck_here = 1",
  "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
  # A device program that never ends, like a collective that waits for a lost host.
  "jax": "endless(1).block_until_ready()",
  # A regular expression that holds the GIL for years.
  "regular_expression": "re.match(r'(a+)+$', 'a' * 60 + 'b')",
}
BEFORE = {
  "jax": """
import jax
endless = jax.jit(lambda x: jax.lax.while_loop(lambda v: v > 0, lambda v: v * 5 % 7 + 1, x)).lower(1).compile()
"""
}
HANGING = """
{before}
def hang():
  {hang}
with Watchdog(1.0, report, os._exit) as watchdog:
  watchdog.arm()
  print("hangs now", flush=True)
  hang()
"""
# Longer than the limit of 2 seconds: before the first heartbeat, with heartbeats, after the end, without limit.
QUIET = {
  "compiling": "with Watchdog(2.0, report, os._exit): time.sleep(2.6)",
  "at work": """
with Watchdog(2.0, report, os._exit) as watchdog:
  for _ in range(52):
    watchdog.heartbeat()
    time.sleep(0.05)
""",
  "ended": """
with Watchdog(2.0, report, os._exit) as watchdog:
  watchdog.heartbeat()
  time.sleep(0.6)
time.sleep(2.6)
""",
  # Suspended for longer than the limit, by another process: see `suspend`.
  "suspended": """
with Watchdog(2.0, report, os._exit) as watchdog:
  watchdog.arm()
  print("ready", flush=True)
  for _ in range(50):  # longer than the 2 seconds after which the alarm would end it
    watchdog.heartbeat()
    time.sleep(0.05)
""",
  "no limit": """
with Watchdog(0, report, os._exit) as off:
  off.heartbeat()
  time.sleep(1.0)
""",
}


@contextlib.contextmanager
def running(programs, tmp_path_factory):
  """Starts all programs; returns (folder of the report, process) by name."""
  started = {}
  for name, program in programs.items():
    folder = tmp_path_factory.mktemp(name.replace(" ", "_"))
    head = (
      "import os, re, sys, threading, time\nfrom pathlib import Path\n"
      "from t5like.training.guards.watchdog import Watchdog\n"
      f"report = Path({str(folder / 'stalled.txt')!r})\n"
    )
    started[name] = folder, subprocess.Popen(
      [sys.executable, "-c", head + program],
      env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
  yield started
  for _, process in started.values():
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def hanging(tmp_path_factory):
  programs = {kind: HANGING.format(before=BEFORE.get(kind, ""), hang=hang) for kind, hang in HANGS.items()}
  with running(programs, tmp_path_factory) as started:
    yield started


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
  with running(QUIET, tmp_path_factory) as started:
    suspend(started["suspended"][1])
    yield started


def suspend(process: subprocess.Popen) -> None:
  """Suspends a process for 3 seconds, in which its timers expire: after 2.5."""
  assert process.stdout.readline() == "ready\n"
  process.send_signal(signal.SIGSTOP)
  time.sleep(3.0)
  process.send_signal(signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HANGS)
def test_a_stalled_process_dumps_stacks_and_ends_with_124(kind, hanging):
  folder, process = hanging[kind]
  out, err = process.communicate(timeout=300)
  in_c = kind == "regular_expression"  # no Python code can run: only faulthandler and the alarm
  assert process.returncode == (-signal.SIGALRM if in_c else STALLED) and STALLED == 124, err
  assert "hangs now" in out and " in hang" in err
  if not in_c:
    assert " in hang" in (folder / "stalled.txt").read_text()
    assert "WATCHDOG_MINUTES" in err and str(folder / "stalled.txt") in err
    assert "no step ended in 0.0167 minutes" in err


@pytest.mark.parametrize("state", QUIET)
def test_it_is_quiet_before_the_first_heartbeat_when_working_and_after_the_end(state, quiet):
  folder, process = quiet[state]
  out, err = process.communicate(timeout=300)
  assert process.returncode == 0 and not out
  if state == "suspended":  # reported, but not an error
    assert "did not run for" in err and "does not count" in err and "stalled" not in err
  else:
    assert not err
  assert not (folder / "stalled.txt").exists()


def test_a_heartbeat_is_cheap():
  with Watchdog(60) as watchdog:
    started = time.process_time()
    for _ in range(100_000):
      watchdog.heartbeat()
    assert (time.process_time() - started) / 100_000 < 20e-6


def test_without_end_process_a_stall_is_reported_repeatedly(tmp_path, capfd):
  with Watchdog(0.3, tmp_path / "stacks.txt") as watchdog:
    watchdog.arm()
    deadline, err = time.monotonic() + 60, ""
    while err.count("the run is stalled") < 2:
      time.sleep(0.05)
      err += capfd.readouterr().err
      assert time.monotonic() < deadline
  assert "ending it" not in err and "test_watchdog.py" in (tmp_path / "stacks.txt").read_text()
