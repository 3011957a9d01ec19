"""Who holds something, told so that others can see whether it still lives."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def own_identity() -> dict[str, Any]:
  """This process: where its number means something, and when it began, since numbers are used again."""
  pid = os.getpid()
  return {"host": socket.gethostname(), "place": _place(), "pid": pid, "began": _began(pid)}


def is_gone(identity: Mapping[str, Any]) -> bool | None:
  """Whether that process has ended; None where it is of another machine, or not known at all."""
  if "place" not in identity or identity["place"] != _place():
    return None
  return _began(identity["pid"]) != identity["began"]


def _place() -> str:
  """The machine since it was last started, and the container in it."""
  parts = [socket.gethostname()]
  with contextlib.suppress(OSError):
    parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    parts.append(os.readlink("/proc/self/ns/pid"))
  return " ".join(parts)


def _began(pid: int) -> int | None:
  """When a process of this machine began, in ticks since the machine did; None where there is no such process."""
  try:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
  except (OSError, ValueError, IndexError):
    return None
