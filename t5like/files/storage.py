"""Files wherever they are: on this machine, or objects of a store such as gs://.

`as_path` gives a plain pathlib.Path for a local path, so that nothing changes and nothing costs there, and a
RemotePath, with pathlib's methods, for anything with a scheme that fsspec knows. What differs on a store:

- Objects are whole or not there: a write needs no temporary name. There are no folders: they exist as far as objects
  lie below them, and `mkdir` does nothing.
- A rename copies every object, which is neither fast nor atomic. Code that counts on a rename asks `is_remote`.
- Nothing can be appended to: `appending` keeps the file here and sends all of it now and then.
- Nothing can be mapped into memory: `mirror_folder` is where a local copy belongs.
- There is no flock: see file_lock.py for the lease that takes its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, Any

from t5like.errors import UserError
from t5like.files.remote_path import SCHEME, RemotePath, naming

# Orbax and JAX reach gs:// through etils, which would import TensorFlow into the trainer wherever it is installed.
os.environ.setdefault("EPATH_USE_TF", "0")

DEFAULT_ROOT = "~/.cache/t5like"  # of token caches, and of what is downloaded
MIRROR_VARIABLE = "T5LIKE_MIRROR_DIR"
_DEFAULT_MIRROR = f"{DEFAULT_ROOT}/mirror"
_TRANSFERS = 8  # objects at a time
_LONGEST, _LONGEST_NAME = 4095, 255  # bytes of a path, and of a name in it


def as_path(given: str | os.PathLike[str]) -> Path | RemotePath:
  """The path that a user gave: `~` is the home folder, and a URI stays one."""
  if isinstance(given, RemotePath):
    return given
  text = os.fspath(given)
  coded = text.encode("utf-8", "surrogatepass")
  if b"\0" in coded or len(coded) > _LONGEST or any(len(name) > _LONGEST_NAME for name in coded.split(b"/")):
    raise UserError(
      f"no file can have the path {text[:60]!r}{'...' * (len(text) > 60)}", length=f"{len(coded):,} bytes"
    )
  return RemotePath(text) if SCHEME.match(text) else Path(text).expanduser()


def is_remote(path: str | os.PathLike[str]) -> bool:
  return isinstance(path, RemotePath) or bool(SCHEME.match(os.fspath(path)))


def local_path(given: str | os.PathLike[str], what: str) -> Path:
  """A path that has to be on this machine; pathlib would take 'gs://x' for a folder called 'gs:'."""
  if is_remote(given):
    raise UserError(f"{what} = {given!s} is no local path", expected="a path of this machine")
  return as_path(given)


def check_reachable(path: str | os.PathLike[str], what: str) -> None:
  """Refuses a store that cannot be asked: no package, no credentials, no such bucket. Local paths pass.

  To be called before any work starts; `what` is the user's name for the path.
  """
  if not is_remote(path):
    return
  remote = as_path(path)
  if not remote.bucket:
    raise UserError(f"{what} = {path!s} names no bucket", expected="gs://BUCKET/FOLDER")
  try:
    with naming(remote):
      if remote.scheme in ("gs", "gcs"):
        # A listing needs no more rights than training does, and tells a missing bucket from an empty one.
        remote.fs.call("GET", "b/{}/o", remote.bucket, maxResults=1, prefix=remote.key.partition("/")[2])
      else:
        remote.fs.exists(str(remote))
  except FileNotFoundError:
    raise UserError(
      f"{what} = {path!s}: there is no bucket {remote.bucket!r}",
      try_=f"gcloud storage buckets create gs://{remote.bucket} --location=..., near the machines that train",
    ) from None
  except PermissionError as error:
    raise denied(what, path, error) from None
  except OSError as error:
    raise UserError(f"{what} = {path!s} cannot be reached", because=error.strerror or error) from None


def denied(what: str, path: object, error: OSError) -> UserError:
  return UserError(
    f"{what} = {path!s}: access is denied",
    because=error.strerror or error,
    try_="gcloud auth application-default login; on a cloud machine, give its service account "
    "the role Storage Object User on the bucket, and the machine the scope cloud-platform",
  )


_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


def read_json(path: Path | RemotePath, kind: type = dict) -> Any:
  """The content of a JSON file. Raises ValueError where it is not JSON, or not of `kind`; OSError as reading does."""
  return parse_json(path.read_bytes(), kind)


def parse_json(text: bytes | str, kind: type = dict) -> Any:
  """Parses JSON that may be somebody else's: whatever is wrong with it is a ValueError."""
  try:
    found = json.loads(text)
  except RecursionError:
    raise ValueError("its brackets are nested too deeply") from None
  if not isinstance(found, kind):
    given, expected = (_JSON_NAMES.get(k, "number") for k in (type(found), kind))
    raise ValueError(f"expected a JSON {expected}, got {given}")
  return found


def is_plain_name(name: Any) -> bool:
  """Whether it can name a file, and only a file of the folder it is looked for in."""
  return isinstance(name, str) and 0 < len(name) <= 255 and name not in (".", "..") and not set("/\\\0") & set(name)


def write_whole(path: Path | RemotePath, data: bytes | str, sync: bool = False) -> None:
  """Replaces a file in one step: a reader sees the old or the new content, never half of it.

  `sync` has it on the disk, not only with the system, when this returns.
  """
  content = data.encode() if isinstance(data, str) else data
  if is_remote(path):
    path.write_bytes(content)
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  with replacing(path, sync=sync) as fresh:
    fresh.write_bytes(content)


@contextlib.contextmanager
def replacing(path: Path, folder: Path | None = None, sync: bool = False) -> Iterator[Path]:
  """A new file to fill, that takes the place of a local one in one step when the block has ended well.

  Its name is nobody else's: threads and processes of any machine may replace the same file at once, and the last one's
  content stays, whole. It waits beside the file, or in `folder`, which must be on the same disk.
  """
  fresh = (folder or path.parent) / f"{path.name}.{uuid.uuid4().hex[:12]}.tmp"
  fresh.touch(exist_ok=False)
  try:
    yield fresh
    if sync:
      with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.replace(path)
  except BaseException:
    fresh.unlink(missing_ok=True)
    raise


def append_text(path: Path | RemotePath, text: str) -> None:
  """Adds to a small file. On a store that is a rewrite, so that only one process may do it."""
  if is_remote(path):
    try:
      before = path.read_bytes()
    except FileNotFoundError:
      before = b""
    path.write_bytes(before + text.encode())
    return
  with path.open("a", encoding="utf-8") as file:
    file.write(text)


def remove_tree(path: Path | RemotePath, ignore_errors: bool = False) -> None:
  if not is_remote(path):
    shutil.rmtree(path, ignore_errors=ignore_errors)
    return
  try:
    with naming(path):
      path.fs.rm(str(path), recursive=True)
  except OSError:
    if not ignore_errors:
      raise


def appending(path: Path | RemotePath, content: bytes | None = None) -> IO[bytes] | AppendedObject:
  """A file to append bytes to, that lasts: with the system after each write, or soon on the store.

  `content` is what the file holds, where the caller knows: a store is not asked for it then.
  """
  return AppendedObject(path, content) if is_remote(path) else path.open("ab", buffering=0)


def send(file: IO[bytes] | AppendedObject) -> None:
  """Has all that was written to what `appending` gave on the store; on a disk it is there."""
  if isinstance(file, AppendedObject):
    file.send()


class AppendedObject:
  """A file that grows here and is sent whole, in the background, every half minute, and at `send` and `close`.

  The larger it is the more seldom, so that little of the time goes by sending. A killed process loses what it wrote
  since: a run sends along with its checkpoints, and goes on from one of those.
  """

  _SECONDS = 30.0
  _BYTES_A_SECOND = 1e6

  def __init__(self, path: RemotePath, content: bytes | None = None):
    self._path = path
    self._file = tempfile.TemporaryFile()
    with contextlib.suppress(FileNotFoundError):
      self._file.write(path.read_bytes() if content is None else content)
    self._sent_bytes = self._file.tell()
    self._sent = time.monotonic()
    self._lock = threading.Lock()
    self._error: OSError | None = None
    self._thread: threading.Thread | None = None

  def write(self, data: bytes) -> int:
    self._raise()
    with self._lock:
      count = self._file.write(data)
      due = max(self._SECONDS, self._file.tell() / self._BYTES_A_SECOND)
    if time.monotonic() - self._sent > due and (self._thread is None or not self._thread.is_alive()):
      self._sent = time.monotonic()
      self._thread = threading.Thread(target=self._send, name="upload", daemon=True)
      self._thread.start()
    return count

  def flush(self) -> None:
    """Nothing: sending all of it after every write would take ever longer. See `send`."""

  def truncate(self, size: int) -> None:
    with self._lock:
      self._file.truncate(size)
      self._file.seek(size)

  def send(self) -> None:
    """Returns when all that was written is on the store."""
    if self._thread is not None:
      self._thread.join()
    self._send()
    self._raise()

  def close(self) -> None:
    if not self._file.closed:
      self.send()
      self._file.close()

  def _send(self) -> None:
    try:
      with self._lock:
        size = self._file.tell()
        if size == self._sent_bytes:
          return
        self._file.seek(0)
        content = self._file.read()
      self._path.write_bytes(content)
      self._sent_bytes = size
    except OSError as error:
      self._error = error

  def _raise(self) -> None:
    if self._error is not None:
      error, self._error = self._error, None
      raise error


def upload_tree(local: Path, remote: RemotePath, last: str = "") -> None:
  """All files below `local`, the one called `last` after the others."""
  names = [str(path.relative_to(local)) for path in sorted(local.rglob("*")) if path.is_file()]
  with ThreadPoolExecutor(_TRANSFERS, "upload") as pool:
    list(pool.map(lambda name: (remote / name).upload(local / name), [name for name in names if name != last]))
  if last in names:
    (remote / last).upload(local / last)


def download_tree(remote: RemotePath, local: Path) -> Path:
  """All objects below `remote`; those that are there in the same size are not fetched again."""
  files = {name: info["size"] for name, info in remote.files().items()}
  if outside := [name for name in files if ".." in PurePosixPath(name).parts or name.startswith("/")]:
    raise UserError(f"{remote} holds an object whose name leaves its folder", object=outside[0])
  missing = [n for n, size in files.items() if not (local / n).is_file() or (local / n).stat().st_size != size]
  with ThreadPoolExecutor(_TRANSFERS, "download") as pool:
    list(pool.map(lambda name: fetch(remote / name, local / name), missing))
  return local


def mirror_folder(remote: RemotePath) -> Path:
  """Where the local copy of a remote folder or file belongs: below ~/.cache/t5like/mirror, or T5LIKE_MIRROR_DIR."""
  root = Path(os.environ.get(MIRROR_VARIABLE) or _DEFAULT_MIRROR).expanduser()
  return root / remote.scheme / remote.key


def local_copy(path: Path | RemotePath) -> Path:
  """The path itself, or a fresh local copy of a remote file."""
  if not is_remote(path):
    return path
  return fetch(path, mirror_folder(path))


def fetch(remote: RemotePath, local: Path, check: Callable[[Path], None] = lambda path: None) -> Path:
  """Downloads an object, has `check` look at it, and only then gives it its name."""
  local.parent.mkdir(parents=True, exist_ok=True)
  with replacing(local) as fresh:
    remote.download(fresh)
    check(fresh)
  return local
