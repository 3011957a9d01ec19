"""Identifies processes, so that others can check whether the holder of a lock is alive."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def own_identity() -> dict[str, Any]:
  """Returns the identity of this process; the pid alone is not enough, as it is local and reused."""
  pid = os.getpid()
  return {"host": socket.gethostname(), "place": _pid_namespace(), "pid": pid, "began": _start_time(pid)}


def is_gone(identity: Mapping[str, Any]) -> bool | None:
  """Returns whether the process has exited; None if it is on another machine or not identified."""
  if "place" not in identity or identity["place"] != _pid_namespace():
    return None
  return _start_time(identity["pid"]) != identity["began"]


def _pid_namespace() -> str:
  """Returns the host, its boot and its container, within which a pid is valid."""
  parts = [socket.gethostname()]
  with contextlib.suppress(OSError):
    parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    parts.append(os.readlink("/proc/self/ns/pid"))
  return " ".join(parts)


def _start_time(pid: int) -> int | None:
  """Returns when a process started, in clock ticks since boot; None if there is no such process."""
  try:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
  except (OSError, ValueError, IndexError):
    return None
