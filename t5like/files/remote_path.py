"""An object on a store such as gs://, with the methods of pathlib. See storage.py for differences from files."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import logging
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any

from t5like.errors import UserError

SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_PACKAGES = {"gs": "'t5like[gcs]'", "gcs": "'t5like[gcs]'", "s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}
_DENIED = re.compile(r"\b40[13]\b|Forbidden|Anonymous caller|credentials|Unauthorized|RefreshError", re.IGNORECASE)


class RemotePath(os.PathLike):
  """An object, or a folder of objects, with the methods of pathlib.Path that t5like uses. Immutable."""

  def __init__(self, uri: str):
    found = SCHEME.match(uri)
    if found is None:
      raise ValueError(f"{uri!r} has no scheme")
    self.scheme = found[1].lower()
    # A leading slash keeps '..' inside the bucket.
    self.key = posixpath.normpath("/" + uri[found.end() :]).strip("/")

  def _at(self, key: str) -> RemotePath:
    return RemotePath(f"{self.scheme}://{key}")

  def __fspath__(self) -> str:
    return f"{self.scheme}://{self.key}"

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
    return self._at(f"{self.key}/{os.fspath(name)}")

  @property
  def bucket(self) -> str:
    return self.key.partition("/")[0]

  @property
  def name(self) -> str:
    return posixpath.basename(self.key)

  @property
  def stem(self) -> str:
    return PurePosixPath(self.name).stem

  @property
  def suffix(self) -> str:
    return PurePosixPath(self.name).suffix

  @property
  def suffixes(self) -> list[str]:
    return PurePosixPath(self.name).suffixes

  @property
  def parent(self) -> RemotePath:
    return self._at(posixpath.dirname(self.key) or self.key)

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
    return PurePosixPath(self.key).relative_to(other.key)

  def absolute(self) -> RemotePath:
    return self

  expanduser = resolve = absolute

  def is_absolute(self) -> bool:
    return True

  @property
  def fs(self) -> Any:
    """The fsspec file system; raises UserError if its package is missing."""
    return _file_system(self.scheme, str(self))

  def info(self) -> dict[str, Any]:
    """Returns an object's metadata: size, type, and more that depends on the store."""
    with as_os_errors(self):
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
    """Returns `st_size` and `st_mtime`, the latter 0 if the store does not provide it."""
    found = self.info()
    changed = found.get("mtime") or found.get("LastModified") or found.get("created")
    return SimpleNamespace(
      st_size=found.get("size") or 0, st_mtime=changed.timestamp() if hasattr(changed, "timestamp") else 0.0
    )

  def iterdir(self) -> Iterator[RemotePath]:
    for entry in self._entries():
      yield self / entry

  def _entries(self) -> list[str]:
    with as_os_errors(self):
      found = self.fs.ls(str(self), detail=False)
    names = {posixpath.basename(entry.rstrip("/")) for entry in found if entry.strip("/") != self.key}
    return sorted(names)

  def glob(self, pattern: str) -> Iterator[RemotePath]:
    """Yields matching paths; supports `*` and `?` in each part of the pattern. After a part `**`, objects only."""
    first, _, rest = pattern.partition("/")
    if first == "**":
      yield from (self / name for name in self.files() if _matches(name.split("/"), pattern.split("/")))
      return
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
    """Returns the metadata of all objects below, by relative path, from one listing."""
    with as_os_errors(self):
      found = self.fs.find(str(self), detail=True)
    inside = {key.strip("/").removeprefix(f"{self.key}/"): info for key, info in found.items()}
    return {name: info for name, info in sorted(inside.items()) if info["type"] == "file" and name != self.key}

  def rglob(self, pattern: str) -> Iterator[RemotePath]:
    for name in self.files():
      if fnmatch.fnmatch(posixpath.basename(name), pattern):
        yield self / name

  def open(
    self, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None
  ) -> IO[Any]:
    """Opens the object; written data appears on the store on close. For mode 'a', see `storage.open_append`."""
    if "a" in mode:
      raise ValueError(f"{self}: cannot append to an object")
    with as_os_errors(self):
      raw = self.fs.open(str(self), mode.replace("t", "").replace("b", "") + "b")
    return raw if "b" in mode else io.TextIOWrapper(raw, encoding or "utf-8", errors)

  def read_bytes(self) -> bytes:
    with as_os_errors(self):
      return self.fs.cat_file(str(self))

  def read_range(self, start: int, stop: int) -> bytes:
    """Returns bytes `start` to `stop`."""
    with as_os_errors(self):
      return self.fs.cat_file(str(self), start=start, end=stop)

  def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
    return self.read_bytes().decode(encoding, errors)

  def write_bytes(self, data: bytes) -> None:
    with as_os_errors(self):
      self.fs.pipe_file(str(self), bytes(data))

  def write_text(self, text: str, encoding: str = "utf-8") -> None:
    self.write_bytes(text.encode(encoding))

  def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
    """Does nothing: folders exist as long as they contain objects."""

  rmdir = mkdir

  def unlink(self, missing_ok: bool = False) -> None:
    try:
      with as_os_errors(self):
        self.fs.rm_file(str(self))
    except FileNotFoundError:
      if not missing_ok:
        raise

  def rename(self, target: RemotePath) -> RemotePath:
    """Copies every object and removes the old ones: slow, and not atomic."""
    with as_os_errors(self):
      self.fs.mv(str(self), str(target), recursive=self.is_dir())
    return target

  replace = rename

  def upload(self, local: Path) -> None:
    with as_os_errors(self):
      self.fs.put_file(str(local), str(self))

  def download(self, local: Path) -> None:
    with as_os_errors(self):
      self.fs.get_file(str(self), str(local))


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
  """Returns whether the parts of a path match those of a pattern, in which `**` is any number of folders."""
  if not pattern or not parts:
    return not parts and all(part == "**" for part in pattern)
  if pattern[0] == "**":
    return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
  return fnmatch.fnmatch(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _file_system(scheme: str, uri: str) -> Any:
  import fsspec

  logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints the traceback of every error that it raises
  # Other processes write there too, so a cached listing may be stale. Orbax uses the same settings.
  for name in (scheme, "gcs" if scheme == "gs" else scheme):
    fsspec.config.conf.setdefault(name, {}).setdefault("use_listings_cache", False)
  try:
    return fsspec.filesystem("gcs" if scheme == "gs" else scheme)
  except ImportError as error:
    package = _PACKAGES.get(scheme, "")
    raise UserError(
      f"{scheme}:// requires a package that is not installed: {error}",
      path=uri,
      try_=package and f"pip install {package}",
    ) from None
  except ValueError:
    raise UserError(f"unknown scheme: {scheme}://", path=uri, expected="a local path, or gs://BUCKET/...") from None


@contextlib.contextmanager
def as_os_errors(path: RemotePath) -> Iterator[None]:
  """Converts errors of stores and their libraries to OSErrors that name the path."""
  try:
    yield
  except (UserError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError):
    raise
  except Exception as error:
    kind = PermissionError if _DENIED.search(f"{type(error).__name__} {error}") else OSError
    text = " ".join(str(error).split()) or type(error).__name__
    raise kind(None, f"{path}: {text[:500]}") from error
