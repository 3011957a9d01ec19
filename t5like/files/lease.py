"""A lock on a store such as gs://: an object that only one can create, and that its holder renews.

Nobody frees the lease of a process that is killed. Another process of the same machine sees that it is dead and takes
the lease at once; one of another machine when the object was not renewed for long enough. On gs:// every change names
the generation of the object that it is meant for, so that of two who take over one wins, and a holder that slept too
long learns that it lost. Other stores have no such condition: there two who take over in the same moment both believe
that they hold it.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from t5like.files.process_identity import is_gone, own_identity
from t5like.files.remote_path import RemotePath, naming


class LeaseLost(Exception):
  """Somebody else took over: this process was silent for too long, and must not write any more."""


class Lease:
  """`try_acquire` until it gives None; `touch` now and then while held; `release` at the end."""

  def __init__(self, path: RemotePath, stale_after_seconds: float, about: Mapping[str, object] | None = None):
    self.path, self._stale_after, self._about = path, stale_after_seconds, dict(about or {})
    self._token = uuid.uuid4().hex
    self._generation: str | None = None
    self._is_lost = False
    self.last_sign = 0.0  # when its holder was last heard of, by the clock of the store

  def try_acquire(self) -> dict[str, object] | None:
    """None where the lease is ours now, else what is known of its holder (nothing while it is being taken)."""
    if self._create():
      return None
    try:
      info = self.path.info()
      holder = json.loads(self.path.read_bytes())
      self.last_sign = self.path.stat().st_mtime
    except (FileNotFoundError, ValueError):
      return {}
    if not self._is_dead(holder):
      return holder
    with contextlib.suppress(FileNotFoundError, FileExistsError):  # another was faster
      self._remove(info.get("generation"))
    return None if self._create() else {}

  def touch(self) -> None:
    """Renews it; raises LeaseLost where it is somebody else's by now."""
    try:
      if self._generation is not None:
        with naming(self.path):
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
      with naming(self.path):
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
    with naming(self.path):
      self._call("DELETE", generation)

  def _call(self, method: str, generation: str, **more: Any) -> None:
    key = self.path.key.partition("/")[2]
    self.path.fs.call(method, "b/{}/o/{}", self.path.bucket, key, ifGenerationMatch=generation, **more)

  def _is_dead(self, holder: Mapping[str, Any]) -> bool:
    gone = is_gone(holder)
    return time.time() - self.last_sign > self._stale_after if gone is None else gone
