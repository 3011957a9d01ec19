"""A lock on a store such as gs://: an object that only one process can create, and that its holder renews.

The lease of a killed process is not released. A process on the same machine sees that the holder is dead and takes
over immediately; one on another machine does so once the lease is stale. On gs:// every request carries the object's
generation as a precondition, so only one of two contenders wins, and a holder that slept too long notices its loss.
Other stores have no preconditions: two processes that take over at the same moment both believe to hold the lease.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from t5like.files.process_identity import is_gone, own_identity
from t5like.files.remote_path import RemotePath, as_os_errors


class LeaseLost(Exception):
  """Another process has taken over a stale lease; this process must not write any more."""


class Lease:
  """A lease: call `try_acquire` until it returns None, `touch` regularly while holding it, then `release`."""

  def __init__(self, path: RemotePath, stale_after_seconds: float, about: Mapping[str, object] | None = None):
    self.path, self._stale_after, self._about = path, stale_after_seconds, dict(about or {})
    self._token = uuid.uuid4().hex
    self._generation: str | None = None
    self._is_lost = False
    self.last_renewal = 0.0  # when its holder was last heard of, by the clock of the store

  def try_acquire(self) -> dict[str, object] | None:
    """Returns None if the lease was acquired, else its holder (empty while it is being acquired)."""
    if self._create():
      return None
    try:
      info = self.path.info()
      holder = json.loads(self.path.read_bytes())
      self.last_renewal = self.path.stat().st_mtime
    except (FileNotFoundError, ValueError):
      return {}
    if not self._is_dead(holder):
      return holder
    with contextlib.suppress(FileNotFoundError, FileExistsError):  # another process was faster
      self._remove(info.get("generation"))
    return None if self._create() else {}

  def touch(self) -> None:
    """Renews the lease; raises LeaseLost if another process has taken over."""
    try:
      if self._generation is not None:
        with as_os_errors(self.path):
          self._call("PATCH", self._generation, json={"metadata": {"renewed": str(time.time())}})
      elif json.loads(self.path.read_bytes()).get("token") != self._token:
        raise FileExistsError(str(self.path))
      else:
        self.path.write_bytes(self._content())
    except (FileNotFoundError, FileExistsError):  # gone, or of another generation or holder
      self._is_lost = True
      raise LeaseLost(str(self.path)) from None

  def release(self) -> None:
    if self._is_lost:  # it is somebody else's
      return
    with contextlib.suppress(OSError):
      self._remove(self._generation)
    self._generation = None

  def _content(self) -> bytes:
    return json.dumps({**own_identity(), "token": self._token, **self._about}).encode()

  def _create(self) -> bool:
    try:
      with as_os_errors(self.path):
        self.path.fs.pipe_file(str(self.path), self._content(), mode="create")
    except FileExistsError:
      return False
    info = self.path.info()
    self._generation, self._is_lost = info.get("generation"), False
    return True

  def _remove(self, generation: str | None) -> None:
    if generation is None:
      self.path.unlink()
      return
    with as_os_errors(self.path):
      self._call("DELETE", generation)

  def _call(self, method: str, generation: str, **more: Any) -> None:
    key = self.path.key.partition("/")[2]
    self.path.fs.call(method, "b/{}/o/{}", self.path.bucket, key, ifGenerationMatch=generation, **more)

  def _is_dead(self, holder: Mapping[str, Any]) -> bool:
    gone = is_gone(holder)
    return time.time() - self.last_renewal > self._stale_after if gone is None else gone
