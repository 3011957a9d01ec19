"""Real processes that hang in different ways, and some that do not."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5like.training.watchdog import STALLED

REPOSITORY = Path(__file__).resolve().parents[2]

HANGS = {
  "python": "while True: stuck_here = 1",
  "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
  # A program on the device that never ends, as a collective that waits for a lost host.
  "jax": "endless(1).block_until_ready()",
  # A regular expression keeps the interpreter for years.
  "regular_expression": "re.match(r'(a+)+$', 'a' * 60 + 'b')",
}
BEFORE = {
  "jax": """
import jax
endless = jax.jit(lambda x: jax.lax.while_loop(lambda v: v > 0, lambda v: v * 5 % 7 + 1, x)).lower(1).compile()
"""
}


def run(program: str, timeout: float = 30.0) -> tuple[subprocess.CompletedProcess, float]:
  began = time.monotonic()
  done = subprocess.run(
    [sys.executable, "-c", "import os, re, sys, threading, time\n"
     "from pathlib import Path\nfrom t5like.training.watchdog import Watchdog\n" + program],
    env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=timeout,
  )  # fmt: skip
  return done, time.monotonic() - began


@pytest.mark.parametrize("way", HANGS)
def test_a_process_that_stands_still_says_where_and_ends_with_124(way, tmp_path):
  done, seconds = run(f"""
{BEFORE.get(way, "")}
def hang():
  {HANGS[way]}
with Watchdog(1.0, Path({str(tmp_path / "stalled.txt")!r})) as watchdog:
  for step in range(4):
    time.sleep(0.3)  # together longer than the limit, each of them shorter
    watchdog.beat()
  print("hangs now", flush=True)
  hang()
""")
  assert done.returncode == STALLED == 124, done.stderr
  assert "hangs now" in done.stdout and " in hang" in done.stderr
  assert seconds < 15
  if way != "regular_expression":  # where no Python runs, the C library's stacks are all there is
    assert " in hang" in (tmp_path / "stalled.txt").read_text()
    assert "WATCHDOG_MINUTES" in done.stderr and str(tmp_path / "stalled.txt") in done.stderr
    assert "no step ended in 0.0167 minutes" in done.stderr


def test_it_is_quiet_before_the_first_beat_in_pauses_and_after_the_end(tmp_path):
  done, _ = run(f"""
with Watchdog(0.6, Path({str(tmp_path / "stalled.txt")!r})) as watchdog:
  time.sleep(0.9)  # compiles
  watchdog.arm()
  with watchdog.paused():
    with watchdog.paused():
      time.sleep(0.4)
    time.sleep(0.4)
  for _ in range(6):
    time.sleep(0.15)
    watchdog.beat()
time.sleep(0.8)
with Watchdog(0) as off:
  off.beat()
  time.sleep(0.1)
print("done")
""")
  assert done.returncode == 0 and done.stdout == "done\n" and not done.stderr
  assert not (tmp_path / "stalled.txt").exists()


def test_a_beat_costs_next_to_nothing():
  from t5like.training.watchdog import Watchdog

  with Watchdog(60) as watchdog:
    began = time.perf_counter()
    for _ in range(100_000):
      watchdog.beat()
    assert (time.perf_counter() - began) / 100_000 < 20e-6
