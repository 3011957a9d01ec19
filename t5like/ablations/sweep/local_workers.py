"""`t5like ablate --workers=N`: several worker processes that share the devices of one machine.

Small models leave most of an accelerator idle. Each worker gets a share of the GPU's memory and is charged its share of
the device time. A worker that is killed, or that loses its device, is restarted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from t5like.errors import UserError
from t5like.files.child_processes import Children, ending, shell_status

DEVICE_LOST = 75  # exit status of a worker (EX_TEMPFAIL): a new process may succeed
_SHARE = "T5LIKE_DEVICE_SHARE"
_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_RESTARTS = 3  # of each worker
_POLL_SECONDS = 0.2


def device_share() -> float:
  """Returns this process's share of its devices."""
  return float(os.environ.get(_SHARE, "1"))


def run_workers(command: Sequence[str], workers: int) -> int:
  """Prepares the data, then runs `workers` processes of `command`; returns the exit status of the sweep."""
  with Children() as children:
    preparing = children.start([*command, "--prepare_only"])
    status = preparing.wait()
    children.reap(preparing)
    if status < 0 and children.received_signal is None:
      print(f"the process that prepares the data was killed by {ending(status)}", file=sys.stderr, flush=True)
    if status or children.received_signal is not None:
      return shell_status(status) or 128 + children.received_signal
    if hint := mps_hint():
      print(hint, file=sys.stderr, flush=True)
    environment = {_MEMORY: f"{0.9 / workers:.3f}", **os.environ, _SHARE: str(1 / workers)}
    team = [_Worker(number, children, command, environment) for number in range(1, workers + 1)]
    while any(worker.status is None for worker in team):
      time.sleep(_POLL_SECONDS)
      for worker in team:
        worker.poll()
    statuses = [worker.status for worker in team]
    if 0 in statuses:  # that worker saw every run finish
      return 0
    return 128 + children.received_signal if children.received_signal is not None else max(map(shell_status, statuses))


class _Worker:
  """A child process that is restarted after a recoverable failure. `status` is None until it ends for good."""

  def __init__(self, number: int, children: Children, command: Sequence[str], environment: dict[str, str]):
    self.status: int | None = None
    self._number, self._children, self._command, self._environment = number, children, command, environment
    self._restarts = _RESTARTS
    self._start()

  def poll(self) -> None:
    if self.status is not None or (status := self._child.poll()) is None:
      return
    self._children.reap(self._child)
    self._printer.join(timeout=10)  # a grandchild might hold the output open
    recoverable = (status < 0 or status == DEVICE_LOST) and self._children.received_signal is None
    if recoverable and self._restarts:
      self._restarts -= 1
      print(f"[{self._number}] exited with status {status}; restarting", flush=True)
      self._start()
    else:
      self.status = status

  def _start(self) -> None:
    self._child = self._children.start(
      self._command, env=self._environment, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
    )
    self._printer = threading.Thread(target=_print_lines, args=(f"[{self._number}] ", self._child.stdout), daemon=True)
    self._printer.start()


def _print_lines(prefix: str, lines: TextIO) -> None:
  for line in lines:
    sys.stdout.write(prefix + line)
    sys.stdout.flush()


def mps_hint(driver: Path = Path("/proc/driver/nvidia"), pipes: Path | None = None) -> str:
  """Returns a hint to start NVIDIA's MPS, without which processes on a GPU take turns; '' if not needed."""
  pipes = pipes or Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
  if not driver.exists() or (pipes / "control").exists():
    return ""
  return "hint: workers that share a GPU run concurrently only with NVIDIA's MPS: nvidia-cuda-mps-control -d"


def check_workers(workers: int, together: int, hosts: Sequence[object]) -> None:
  for name, value in (("workers", workers), ("together", together)):
    if value < 1:
      raise UserError(f"invalid --{name}: {value}", expected="at least 1")
    if value > 1 and any(host is not None for host in hosts):
      raise UserError(
        f"--{name} is for one machine, --coordinator and --processes for several", try_="only one of them"
      )
