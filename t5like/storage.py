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
import fnmatch
import io
import os
import posixpath
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any

from t5like.errors import UserError

# Orbax and JAX reach gs:// through etils, which would import TensorFlow into the trainer wherever it is installed.
os.environ.setdefault("EPATH_USE_TF", "0")

MIRROR_VARIABLE = "T5LIKE_MIRROR_DIR"
_DEFAULT_MIRROR = "~/.cache/t5like/mirror"
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_PACKAGES = {"gs": "'t5like[gcs]'", "gcs": "'t5like[gcs]'", "s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}
_DENIED = re.compile(
  r"\b40[13]\b|Forbidden|Anonymous caller|Invalid Credentials|credentials|Unauthorized", re.IGNORECASE
)


def as_path(given: str | os.PathLike[str]) -> Path | RemotePath:
  """The path that a user gave: `~` is the home folder, and a URI stays one."""
  if isinstance(given, RemotePath):
    return given
  text = os.fspath(given)
  return RemotePath(text) if _SCHEME.match(text) else Path(text).expanduser()


def is_remote(path: str | os.PathLike[str]) -> bool:
  return isinstance(path, RemotePath) or bool(_SCHEME.match(os.fspath(path)))


class RemotePath(os.PathLike):
  """An object, or a folder of objects, with the methods of pathlib.Path that t5like uses. Immutable."""

  def __init__(self, uri: str):
    found = _SCHEME.match(uri)
    if found is None:
      raise ValueError(f"{uri!r} has no scheme")
    self._scheme = found[1].lower()
    # A leading slash keeps '..' and the like inside of the bucket.
    self._key = posixpath.normpath("/" + uri[found.end() :]).strip("/")

  def _at(self, key: str) -> RemotePath:
    return RemotePath(f"{self._scheme}://{key}")

  def __fspath__(self) -> str:
    return f"{self._scheme}://{self._key}"

  __str__ = __fspath__

  def __repr__(self) -> str:
    return f"RemotePath({str(self)!r})"

  def __eq__(self, other: object) -> bool:
    return isinstance(other, RemotePath) and str(self) == str(other)

  def __hash__(self) -> int:
    return hash(str(self))

  def __lt__(self, other: RemotePath) -> bool:
    return str(self) < str(other)

  def __truediv__(self, name: str | os.PathLike[str]) -> RemotePath:
    return self._at(f"{self._key}/{os.fspath(name)}")

  @property
  def bucket(self) -> str:
    return self._key.partition("/")[0]

  @property
  def name(self) -> str:
    return posixpath.basename(self._key)

  @property
  def stem(self) -> str:
    return PurePosixPath(self.name).stem

  @property
  def suffix(self) -> str:
    return PurePosixPath(self.name).suffix

  @property
  def parent(self) -> RemotePath:
    return self._at(posixpath.dirname(self._key) or self._key)

  @property
  def parents(self) -> list[RemotePath]:
    found, path = [], self
    while path.parent != path:
      path = path.parent
      found.append(path)
    return found

  def with_name(self, name: str) -> RemotePath:
    return self.parent / name

  def with_suffix(self, suffix: str) -> RemotePath:
    return self.with_name(self.stem + suffix)

  def relative_to(self, other: RemotePath) -> PurePosixPath:
    return PurePosixPath(self._key).relative_to(other._key)

  def absolute(self) -> RemotePath:
    return self

  expanduser = resolve = absolute

  def is_absolute(self) -> bool:
    return True

  @property
  def fs(self) -> Any:
    """The fsspec file system; a UserError says what is missing."""
    return _file_system(self._scheme, str(self))

  def info(self) -> dict[str, Any]:
    """What the store says of an object: size, type, and more that depends on the store."""
    with _named(self):
      return self.fs.info(str(self))

  def exists(self) -> bool:
    try:
      self.info()
    except FileNotFoundError:
      return False
    return True

  def is_file(self) -> bool:
    return self._type() == "file"

  def is_dir(self) -> bool:
    return self._type() == "directory"

  def _type(self) -> str | None:
    try:
      return self.info()["type"]
    except FileNotFoundError:
      return None

  def stat(self) -> SimpleNamespace:
    """`st_size` and `st_mtime`, the latter 0 where the store does not tell."""
    found = self.info()
    changed = found.get("mtime") or found.get("LastModified") or found.get("created")
    return SimpleNamespace(
      st_size=found.get("size") or 0, st_mtime=changed.timestamp() if hasattr(changed, "timestamp") else 0.0
    )

  def iterdir(self) -> Iterator[RemotePath]:
    for entry in self._entries():
      yield self / entry

  def _entries(self) -> list[str]:
    with _named(self):
      found = self.fs.ls(str(self), detail=False)
    names = {posixpath.basename(entry.rstrip("/")) for entry in found if entry.strip("/") != self._key}
    return sorted(names)

  def glob(self, pattern: str) -> Iterator[RemotePath]:
    """`*` and `?` in each part of the pattern; no `**`."""
    first, _, rest = pattern.partition("/")
    try:
      names = fnmatch.filter(self._entries(), first)
    except FileNotFoundError:
      return
    for name in names:
      if rest:
        yield from (self / name).glob(rest)
      else:
        yield self / name

  def files(self) -> dict[str, dict[str, Any]]:
    """All objects below, by relative path, and what the store says of each: one listing."""
    with _named(self):
      found = self.fs.find(str(self), detail=True)
    inside = {key.strip("/").removeprefix(f"{self._key}/"): info for key, info in found.items()}
    return {name: info for name, info in sorted(inside.items()) if info["type"] == "file" and name != self._key}

  def rglob(self, pattern: str) -> Iterator[RemotePath]:
    for name in self.files():
      if fnmatch.fnmatch(posixpath.basename(name), pattern):
        yield self / name

  def open(
    self, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None
  ) -> IO[Any]:
    """Reads and writes; what is written is there when the file is closed. See `appending` for the mode 'a'."""
    if "a" in mode:
      raise ValueError(f"{self}: nothing can be appended to an object")
    with _named(self):
      raw = self.fs.open(str(self), mode.replace("t", "").replace("b", "") + "b")
    return raw if "b" in mode else io.TextIOWrapper(raw, encoding or "utf-8", errors)

  def read_bytes(self) -> bytes:
    with _named(self):
      return self.fs.cat_file(str(self))

  def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
    return self.read_bytes().decode(encoding, errors)

  def write_bytes(self, data: bytes) -> None:
    with _named(self):
      self.fs.pipe_file(str(self), bytes(data))

  def write_text(self, text: str, encoding: str = "utf-8") -> None:
    self.write_bytes(text.encode(encoding))

  def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
    """Folders come with the objects in them."""

  rmdir = mkdir

  def unlink(self, missing_ok: bool = False) -> None:
    try:
      with _named(self):
        self.fs.rm_file(str(self))
    except FileNotFoundError:
      if not missing_ok:
        raise

  def rename(self, target: RemotePath) -> RemotePath:
    """Copies every object and removes the old ones: slow, and not in one step."""
    with _named(self):
      self.fs.mv(str(self), str(target), recursive=self.is_dir())
    return target

  replace = rename

  def upload(self, local: Path) -> None:
    with _named(self):
      self.fs.put_file(str(local), str(self))

  def download(self, local: Path) -> None:
    with _named(self):
      self.fs.get_file(str(self), str(local))


def _file_system(scheme: str, uri: str) -> Any:
  import fsspec

  # Other processes write there too: what was listed before says nothing of now. Orbax asks through the same settings.
  for name in (scheme, "gcs" if scheme == "gs" else scheme):
    fsspec.config.conf.setdefault(name, {}).setdefault("use_listings_cache", False)
  try:
    return fsspec.filesystem("gcs" if scheme == "gs" else scheme)
  except ImportError as error:
    package = _PACKAGES.get(scheme, "")
    raise UserError(
      f"{scheme}:// needs a package that is not installed: {error}", path=uri, try_=package and f"pip install {package}"
    ) from None
  except ValueError:
    raise UserError(f"nothing is known of {scheme}://", path=uri, expected="a local path, gs://BUCKET/...") from None


@contextlib.contextmanager
def _named(path: RemotePath) -> Iterator[None]:
  """Errors of stores and their libraries, of many types, as OSErrors that name the path."""
  try:
    yield
  except (UserError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError):
    raise
  except Exception as error:
    kind = PermissionError if _DENIED.search(f"{type(error).__name__} {error}") else OSError
    text = " ".join(str(error).split()) or type(error).__name__
    raise kind(None, f"{path}: {text[:500]}") from error


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
    with _named(remote):
      if remote._scheme in ("gs", "gcs"):
        # A listing needs no more rights than training does, and tells a missing bucket from an empty one.
        remote.fs.call("GET", "b/{}/o", remote.bucket, maxResults=1, prefix=remote._key.partition("/")[2])
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


def write_whole(path: Path | RemotePath, data: bytes | str) -> None:
  """Replaces a file in one step: a reader sees the old or the new content, never half of it."""
  content = data.encode() if isinstance(data, str) else data
  if is_remote(path):
    path.write_bytes(content)
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  fresh = path.with_name(path.name + ".tmp")
  fresh.write_bytes(content)
  fresh.replace(path)


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
    with _named(path):
      path.fs.rm(str(path), recursive=True)
  except OSError:
    if not ignore_errors:
      raise


def appending(path: Path | RemotePath) -> IO[bytes] | AppendedObject:
  """A file to append bytes to, that lasts: with the system after each write, or soon on the store."""
  return AppendedObject(path) if is_remote(path) else path.open("ab", buffering=0)


class AppendedObject:
  """A file that grows here and is sent whole, in the background, every half minute, and when it is flushed or closed.

  The larger it is the more seldom, so that little of the time goes by sending. A killed process loses what it wrote
  since: a run flushes along with its checkpoints, and goes on from one of those.
  """

  _SECONDS = 30.0
  _BYTES_A_SECOND = 1e6

  def __init__(self, path: RemotePath):
    self._path = path
    self._file = tempfile.TemporaryFile()
    with contextlib.suppress(FileNotFoundError):
      self._file.write(path.read_bytes())
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
    if self._thread is not None:
      self._thread.join()
    self._send()
    self._raise()

  def close(self) -> None:
    if not self._file.closed:
      self.flush()
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


def mirror_folder(remote: RemotePath) -> Path:
  """Where the local copy of a remote folder or file belongs: below ~/.cache/t5like/mirror, or T5LIKE_MIRROR_DIR."""
  root = Path(os.environ.get(MIRROR_VARIABLE) or _DEFAULT_MIRROR).expanduser()
  return root / remote._scheme / remote._key


def local_copy(path: Path | RemotePath) -> Path:
  """The path itself, or a fresh local copy of a remote file."""
  if not is_remote(path):
    return path
  copy = mirror_folder(path)
  copy.parent.mkdir(parents=True, exist_ok=True)
  handle, fresh = tempfile.mkstemp(dir=copy.parent, prefix=f".{copy.name}.")
  os.close(handle)
  try:
    path.download(Path(fresh))
    os.replace(fresh, copy)
  except BaseException:
    Path(fresh).unlink(missing_ok=True)
    raise
  return copy
