"""Claims on runs, for workers that share nothing but a directory.

A claim is a file that only one process can create (O_EXCL) and that its holder touches as a heartbeat. A stale claim is
taken over by creating the file with the next number, which again only one process can: nothing is ever deleted or
replaced under a live worker. The highest number counts. `files.locks.hold` does not fit: a sweep also looks up the
holder of a run without taking it, and a worker must notice that it was taken over before it writes its result.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from t5like.files import storage
from t5like.files.heartbeat import keep_alive
from t5like.files.process_identity import is_gone, own_identity

HEARTBEAT = 10.0  # seconds
STALE_AFTER_SECONDS = 180.0  # network file systems show a touch up to a minute late


class Claims:
  """The claims of a sweep, stored in one folder."""

  def __init__(self, folder: Path, heartbeat: float = HEARTBEAT, stale_after_seconds: float = STALE_AFTER_SECONDS):
    self._folder, self._heartbeat, self._stale_after = folder, heartbeat, stale_after_seconds

  def take(self, name: str) -> Claim | None:
    """Returns the claim on `name`, or None while another live process holds it."""
    self._folder.mkdir(parents=True, exist_ok=True)
    number, holder = self._newest(name)
    if holder is not None and not self._is_dead(holder):
      return None
    path = self._folder / f"{name}.{number + 1}"
    try:
      file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
      return None  # another process was faster
    with os.fdopen(file, "w", encoding="utf-8") as out:
      out.write(json.dumps(own_identity()))
    return Claim(self, name, number + 1, path, self._heartbeat)

  def holder(self, name: str) -> dict[str, Any] | None:
    """Returns the identity of the live holder of `name`, or None."""
    path = self._newest(name)[1]
    return None if path is None or self._is_dead(path) else _read(path)

  def is_newest(self, name: str, number: int) -> bool:
    return self._newest(name)[0] == number

  def _newest(self, name: str) -> tuple[int, Path | None]:
    pattern = re.compile(re.escape(name) + r"\.(\d+)")
    found = {int(m[1]): path for path in self._folder.glob("*") if (m := pattern.fullmatch(path.name))}
    return max(found.items(), default=(0, None))

  def _is_dead(self, path: Path) -> bool:
    try:
      age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
      return True  # the holder has just exited
    holder = _read(path)
    if holder.get("released") or age > self._stale_after:
      return True
    return bool(is_gone(holder))  # a process on another machine is judged by its heartbeat alone


class Claim:
  """A context manager that holds a claim: `with claim: ...`."""

  def __init__(self, claims: Claims, name: str, number: int, path: Path, heartbeat: float):
    self._claims, self._name, self._number, self._path = claims, name, number, path
    self._alive = keep_alive(lambda: os.utime(path), heartbeat)

  @property
  def is_ours(self) -> bool:
    """False once another process has taken over a claim it considered stale: do not write the result then."""
    return self._claims.is_newest(self._name, self._number)

  def __enter__(self) -> Claim:
    self._alive.__enter__()
    return self

  def __exit__(self, *failure: Any) -> None:
    self._alive.__exit__(*failure)
    # Released claims stay: if they were deleted, two workers could hold the same number at once.
    storage.write_atomic(self._path, json.dumps({**own_identity(), "released": True}))


def _read(path: Path) -> dict[str, Any]:
  """Returns the content of a claim; {} while it is being written."""
  try:
    return storage.read_json(path)
  except (OSError, ValueError):
    return {}
