"""Who is at work on what, among workers that share nothing but a directory.

A claim is a file that only one process can create (O_EXCL), and that its holder touches as it works. The claim of a
holder that has died is taken over by creating the file of the next number, which again only one can: nothing is ever
deleted or replaced under a worker that lives. The highest number counts. Not `files.locks.hold`: a sweep also asks who
has a run without taking it, and a worker that was taken over must find out before it writes its result.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t5like.files import storage
from t5like.files.heartbeat import keep_alive
from t5like.files.process_identity import is_gone, own_identity

HEARTBEAT = 10.0  # seconds between signs of life
STALE_AFTER_SECONDS = 180.0  # without one; disks over a network show a touch up to a minute late


class Claims:
  """The claims of a sweep, in a folder of their own."""

  def __init__(self, folder: Path, heartbeat: float = HEARTBEAT, stale_after_seconds: float = STALE_AFTER_SECONDS):
    self._folder, self._heartbeat, self._stale_after = folder, heartbeat, stale_after_seconds

  def take(self, name: str) -> Claim | None:
    """The claim on `name`, None while somebody else who lives has it."""
    self._folder.mkdir(parents=True, exist_ok=True)
    number, holder = self._newest(name)
    if holder is not None and not self._is_dead(holder):
      return None
    path = self._folder / f"{name}.{number + 1}"
    try:
      file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
      return None  # somebody was faster
    with os.fdopen(file, "w", encoding="utf-8") as out:
      out.write(json.dumps(own_identity()))
    return Claim(self, name, number + 1, path, self._heartbeat)

  def holder(self, name: str) -> dict[str, Any] | None:
    """Who has it, where somebody does."""
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
      silent = time.time() - path.stat().st_mtime
    except FileNotFoundError:
      return True  # its holder has just ended
    holder = _read(path)
    if holder.get("released") or silent > self._stale_after:
      return True
    return bool(is_gone(holder))  # of another machine we only hear heartbeats


class Claim:
  """Held while the block runs: `with claim: ...`."""

  def __init__(self, claims: Claims, name: str, number: int, path: Path, heartbeat: float):
    self._claims, self._name, self._number, self._path = claims, name, number, path
    self._alive = keep_alive(lambda: os.utime(path), heartbeat)

  @property
  def is_ours(self) -> bool:
    """False once another has taken over, believing us dead: our work must not be written down then."""
    return self._claims.is_newest(self._name, self._number)

  def __enter__(self) -> Claim:
    self._alive.__enter__()
    return self

  def __exit__(self, *failure: Any) -> None:
    self._alive.__exit__(*failure)
    # It stays, marked as free: were it deleted, two workers could hold the same number at a time.
    storage.write_atomic(self._path, json.dumps({**own_identity(), "released": True}))


def _read(path: Path) -> dict[str, Any]:
  """What a claim says; nothing while it is being written."""
  try:
    return storage.read_json(path)
  except (OSError, ValueError):
    return {}


@contextlib.contextmanager
def held(claim: Claim | None) -> Iterator[Claim | None]:
  """A claim that may be none, as on the hosts of a pod whose first one holds it for all."""
  if claim is None:
    yield None
  else:
    with claim:
      yield claim
