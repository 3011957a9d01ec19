"""Files on this machine, or objects on a store such as gs://.

`as_path` returns a plain pathlib.Path for a local path, without overhead, and a RemotePath with pathlib's methods for
any scheme that fsspec supports. Differences on a store:

- Writes are atomic and need no temporary name. There are no folders, only objects: `mkdir` does nothing.
- A rename copies every object, which is neither fast nor atomic. Code that relies on renames checks `is_remote`.
- Objects cannot be appended to: `open_append` keeps the file locally and uploads all of it periodically.
- Objects cannot be memory-mapped: `mirror_folder` is the place for a local copy.
- There is no flock: lease.py replaces it.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import math
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, Any

from t5like.errors import UserError
from t5like.files.remote_path import SCHEME, RemotePath, as_os_errors

# Orbax and JAX reach gs:// through etils, which would import TensorFlow into the trainer wherever it is installed.
os.environ.setdefault("EPATH_USE_TF", "0")

DEFAULT_ROOT = "~/.cache/t5like"  # of token caches and downloads
MIRROR_VARIABLE = "T5LIKE_MIRROR_DIR"
_DEFAULT_MIRROR = f"{DEFAULT_ROOT}/mirror"
_TRANSFERS = 8  # objects at a time
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, the largest file of a process
_STORE_SUMS = ("crc32c", "ETag", "etag")  # names used by stores; the same bytes in the same place have the same value
_MAX_PATH_BYTES, _MAX_NAME_BYTES = 4095, 255


def as_path(given: str | os.PathLike[str]) -> Path | RemotePath:
  """Returns a path from user input: expands `~`, and turns a URI into a RemotePath."""
  if isinstance(given, RemotePath):
    return given
  text = os.fspath(given)
  coded = text.encode("utf-8", "surrogatepass")
  names = coded.split(b"/")
  if b"\0" in coded or len(coded) > _MAX_PATH_BYTES or any(len(name) > _MAX_NAME_BYTES for name in names):
    raise UserError(f"invalid path: {text[:60]!r}{'...' * (len(text) > 60)}", length=f"{len(coded):,} bytes")
  return RemotePath(text) if SCHEME.match(text) else Path(text).expanduser()


def is_remote(path: str | os.PathLike[str]) -> bool:
  return isinstance(path, RemotePath) or bool(SCHEME.match(os.fspath(path)))


def local_path(given: str | os.PathLike[str], what: str) -> Path:
  """Returns a path that must be local; pathlib would read 'gs://x' as a folder called 'gs:'."""
  if is_remote(given):
    raise UserError(f"invalid {what}: {given!s} (expected a local path)")
  return as_path(given)


def check_reachable(path: str | os.PathLike[str], what: str) -> None:
  """Raises UserError if a store is not accessible (no package, credentials or bucket). Local paths always pass.

  Call it before any work starts; `what` is the user's name for the path.
  """
  if not is_remote(path):
    return
  remote = as_path(path)
  if not remote.bucket:
    raise UserError(f"invalid {what}: {path!s} (no bucket)", expected="gs://BUCKET/FOLDER")
  try:
    with as_os_errors(remote):
      if remote.scheme in ("gs", "gcs"):
        # A listing needs no more permissions than training does, and distinguishes a missing bucket from an empty one.
        remote.fs.call("GET", "b/{}/o", remote.bucket, maxResults=1, prefix=remote.key.partition("/")[2])
      else:
        remote.fs.exists(str(remote))
  except FileNotFoundError:
    raise UserError(
      f"bucket not found: {remote.bucket!r} ({what}={path!s})",
      try_=f"gcloud storage buckets create gs://{remote.bucket} --location=... (near the training machines)",
    ) from None
  except PermissionError as error:
    raise access_denied(what, path, error) from None
  except OSError as error:
    raise UserError(f"cannot reach {what}: {path!s}", because=error.strerror or error) from None


def matching(pattern: str) -> list[str]:
  """Returns the local or remote files that match a pattern such as `news/*.jsonl.gz`; `**` are folders of any depth."""
  path = as_path(pattern)
  if not is_remote(path):
    if path.is_dir():
      raise UserError(f"{pattern} is a folder", try_=f"its files: '{pattern.rstrip('/')}/*'")
    if path.is_file():  # brackets in its name are not a pattern
      return [str(path)]
    return [found for found in glob.glob(str(path), recursive=True) if not os.path.isdir(found)]
  check_reachable(path, "the files")
  if path.is_file():
    return [str(path)]
  top = as_path(f"{path.scheme}://{path.bucket}")
  return [str(found) for found in top.glob(str(path.relative_to(top)))]


def access_denied(what: str, path: object, error: OSError) -> UserError:
  return UserError(
    f"access denied: {path!s} ({what})",
    because=error.strerror or error,
    try_="gcloud auth application-default login; on a cloud VM, grant its service account the role "
    "Storage Object User on the bucket, and the VM the scope cloud-platform",
  )


_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


def read_lines(path: Path | RemotePath) -> list[str]:
  """Reads lines that end with \\n or \\r\\n only: str.splitlines() also splits at characters such as U+2028."""
  *lines, last = path.read_text(encoding="utf-8-sig").split("\n")
  return [line.removesuffix("\r") for line in (*lines, *([last] if last else []))]


def read_json(path: Path | RemotePath, kind: type = dict) -> Any:
  """Reads a JSON file. Raises ValueError if it is not JSON or not of `kind`, OSError if it cannot be read."""
  return parse_json(path.read_bytes(), kind)


def read_json_lines(path: Path | RemotePath) -> list[dict[str, Any]]:
  """Reads the lines of a log that are JSON objects; skips others, such as the last one of a killed process.

  Returns [] if there is no such file.
  """
  found = []
  if path.is_file():
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
      with contextlib.suppress(ValueError):
        found.append(parse_json(line))
  return found


def parse_json(text: bytes | str, kind: type = dict) -> Any:
  """Parses untrusted JSON; raises ValueError for anything wrong with it."""
  try:
    found = json.loads(text)
  except RecursionError:
    raise ValueError("nested too deeply") from None
  if not isinstance(found, kind):
    given, expected = (_JSON_NAMES.get(k, "number") for k in (type(found), kind))
    raise ValueError(f"expected a JSON {expected}, got {given}")
  return found


def is_plain_name(name: Any) -> bool:
  """Returns whether `name` is a file name that cannot escape its folder."""
  return isinstance(name, str) and 0 < len(name) <= 255 and name not in (".", "..") and not set("/\\\0") & set(name)


@contextlib.contextmanager
def write_errors(what: str, **lines: object) -> Iterator[None]:
  """Raises an OSError of the block as a UserError: cannot write `what`. `lines` are those of the message."""
  try:
    yield
  except OSError as error:
    raise UserError(f"cannot write {what}", **lines, because=error.strerror or error) from None


def write_atomic(path: Path | RemotePath, data: bytes | str, sync: bool = False) -> None:
  """Replaces a file atomically: a reader sees the old or the new content, never a partial one.

  With `sync`, the content is on the disk when this returns.
  """
  content = data.encode() if isinstance(data, str) else data
  if is_remote(path):
    path.write_bytes(content)
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  with atomic_replace(path, sync=sync) as fresh:
    fresh.write_bytes(content)


@contextlib.contextmanager
def atomic_replace(path: Path, folder: Path | None = None, sync: bool = False) -> Iterator[Path]:
  """Yields a temporary file that atomically replaces `path` if the block succeeds.

  Its name is unique: threads and processes on any machine may replace the same file concurrently, and the last one
  wins. It is created next to `path`, or in `folder`, which must be on the same disk.
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
  """Appends a line to a small file, after ending the one before if a kill has cut that short.

  On a store this rewrites the object, so only one process may do it.
  """
  if is_remote(path):
    try:
      before = path.read_bytes()
    except FileNotFoundError:
      before = b""
    path.write_bytes(before + text.encode())
    return
  with path.open("ab+") as file:
    is_cut = file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
    file.write(b"\n" * bool(is_cut) + text.encode())


def files_in(folder: Path | RemotePath) -> dict[str, dict[str, Any]]:
  """Returns the size of every file directly in a folder, by name; on a store with one listing."""
  if is_remote(folder):
    return {name: about for name, about in folder.files().items() if "/" not in name}
  with os.scandir(folder) as found:
    return {entry.name: {"size": entry.stat().st_size} for entry in found if entry.is_file()}


def remove_tree(path: Path | RemotePath, ignore_errors: bool = False) -> None:
  if not is_remote(path):
    shutil.rmtree(path, ignore_errors=ignore_errors)
    return
  try:
    with as_os_errors(path):
      path.fs.rm(str(path), recursive=True)
  except OSError:
    if not ignore_errors:
      raise


def open_append(path: Path | RemotePath, content: bytes | None = None) -> IO[bytes] | AppendedObject:
  """Opens an unbuffered file to append bytes to; on a store, writes are uploaded periodically.

  `content` is the current content, if the caller knows it, which saves a read from the store.
  """
  return AppendedObject(path, content) if is_remote(path) else path.open("ab", buffering=0)


def upload_pending(file: IO[bytes] | AppendedObject) -> None:
  """Uploads all writes to a file from `open_append`; does nothing for a local file."""
  if isinstance(file, AppendedObject):
    file.send()


class AppendedObject:
  """A file that grows locally and is uploaded in the background every 30 seconds, and on `send` and `close`.

  Large files are uploaded less often, to limit the traffic. A killed process loses what it wrote since the last
  upload: a run uploads with its checkpoints and resumes from one of those.
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
    """Does nothing: uploading the complete file after every write would be too slow. See `send`."""

  def truncate(self, size: int) -> None:
    with self._lock:
      self._file.truncate(size)
      self._file.seek(size)

  def send(self) -> None:
    """Uploads everything written so far, and waits for it."""
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
  """Uploads all files below `local`, the one called `last` after the others."""
  names = [str(path.relative_to(local)) for path in sorted(local.rglob("*")) if path.is_file()]
  with ThreadPoolExecutor(_TRANSFERS, "upload") as pool:
    list(pool.map(lambda name: (remote / name).upload(local / name), [name for name in names if name != last]))
  if last in names:
    (remote / last).upload(local / last)


def download_tree(remote: RemotePath, local: Path) -> Path:
  """Downloads all objects below `remote`."""
  _download(remote, local, _objects_inside(remote))
  return local


def local_tree(path: Path | RemotePath) -> Path:
  """Returns a local path as is, or downloads a remote file or folder, and returns the path of the copy.

  Of a folder that was downloaded before, only the objects that have changed: size and checksum are on the store's list.
  """
  if not is_remote(path):
    return path
  if path.is_file():
    return local_copy(path)
  local, files = mirror_folder(path), _objects_inside(path)
  record = local.with_name(f"{local.name}.copied.json")
  known = read_json(record) if record.is_file() else {}
  found = {name: [info["size"], store_checksum(info)] for name, info in files.items()}
  changed = [
    name for name, about in found.items() if not about[1] or known.get(name) != about or not (local / name).is_file()
  ]
  record.unlink(missing_ok=True)  # not valid while files are being replaced
  for name in known.keys() - found.keys():
    (local / name).unlink(missing_ok=True)
  _download(path, local, changed)
  write_atomic(record, json.dumps(found))
  return local


def store_checksum(info: Mapping[str, Any]) -> str | None:
  """Returns the checksum in an object's metadata, with its kind; None on stores without."""
  return next((f"{name}:{info[name]}" for name in _STORE_SUMS if info.get(name)), None)


def _objects_inside(remote: RemotePath) -> dict[str, dict[str, Any]]:
  files = remote.files()
  if outside := [name for name in files if ".." in PurePosixPath(name).parts or name.startswith("/")]:
    raise UserError(f"an object's name points outside its folder: {remote}", object=outside[0])
  return files


def _download(remote: RemotePath, local: Path, names: Iterable[str]) -> None:
  with ThreadPoolExecutor(_TRANSFERS, "download") as pool:
    list(pool.map(lambda name: fetch(remote / name, local / name), names))


def free_bytes(path: Path | RemotePath) -> float:
  """Returns the free space of the disk on which a path is, or will be; infinite on a store."""
  if is_remote(path):
    return math.inf
  while not path.exists():
    path = path.parent
  return shutil.disk_usage(path).free


def has_free_files(path: Path | RemotePath) -> bool:
  """Whether another file can be created on the disk of a folder: it may have inodes for no more."""
  if is_remote(path) or not path.exists():
    return True
  disk = os.statvfs(path)
  return disk.f_files == 0 or disk.f_favail > 0  # some file systems have no fixed number


def mirror_folder(remote: RemotePath) -> Path:
  """Returns the path for a local copy of a remote file or folder, below ~/.cache/t5like/mirror or T5LIKE_MIRROR_DIR."""
  return _mirror_root() / remote.scheme / remote.key


def local_counterpart(path: Path | RemotePath) -> Path:
  """Returns a local path as is; of a remote one, the path of its local copy, whether that exists or not."""
  return mirror_folder(path) if is_remote(path) else path


def _mirror_root() -> Path:
  return Path(os.environ.get(MIRROR_VARIABLE) or _DEFAULT_MIRROR).expanduser()


def is_mirrored(path: Path) -> bool:
  """Returns whether a local path is that of a copy."""
  return path.is_relative_to(_mirror_root())


def local_copy(path: Path | RemotePath) -> Path:
  """Returns a local path as is, or downloads a remote file and returns the path of the copy."""
  if not is_remote(path):
    return path
  return fetch(path, mirror_folder(path))


def fetch(remote: RemotePath, local: Path, check: Callable[[Path], None] = lambda path: None) -> Path:
  """Downloads an object atomically; `check` may raise to reject the file before it gets its name."""
  local.parent.mkdir(parents=True, exist_ok=True)
  with atomic_replace(local) as fresh:
    remote.download(fresh)
    check(fresh)
  return local
