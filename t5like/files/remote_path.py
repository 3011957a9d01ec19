"""An object of a store such as gs://, with the methods of pathlib. What differs from a file: storage.py."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import logging
import os
import posixpath
import re
from collections.abc import Iterator
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
    # A leading slash keeps '..' and the like inside of the bucket.
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
    """The fsspec file system; a UserError says what is missing."""
    return _file_system(self.scheme, str(self))

  def info(self) -> dict[str, Any]:
    """What the store says of an object: size, type, and more that depends on the store."""
    with naming(self):
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
    with naming(self):
      found = self.fs.ls(str(self), detail=False)
    names = {posixpath.basename(entry.rstrip("/")) for entry in found if entry.strip("/") != self.key}
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
    with naming(self):
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
    """Reads and writes; what is written is there when the file is closed. See `appending` for the mode 'a'."""
    if "a" in mode:
      raise ValueError(f"{self}: nothing can be appended to an object")
    with naming(self):
      raw = self.fs.open(str(self), mode.replace("t", "").replace("b", "") + "b")
    return raw if "b" in mode else io.TextIOWrapper(raw, encoding or "utf-8", errors)

  def read_bytes(self) -> bytes:
    with naming(self):
      return self.fs.cat_file(str(self))

  def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
    return self.read_bytes().decode(encoding, errors)

  def write_bytes(self, data: bytes) -> None:
    with naming(self):
      self.fs.pipe_file(str(self), bytes(data))

  def write_text(self, text: str, encoding: str = "utf-8") -> None:
    self.write_bytes(text.encode(encoding))

  def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
    """Folders come with the objects in them."""

  rmdir = mkdir

  def unlink(self, missing_ok: bool = False) -> None:
    try:
      with naming(self):
        self.fs.rm_file(str(self))
    except FileNotFoundError:
      if not missing_ok:
        raise

  def rename(self, target: RemotePath) -> RemotePath:
    """Copies every object and removes the old ones: slow, and not in one step."""
    with naming(self):
      self.fs.mv(str(self), str(target), recursive=self.is_dir())
    return target

  replace = rename

  def upload(self, local: Path) -> None:
    with naming(self):
      self.fs.put_file(str(local), str(self))

  def download(self, local: Path) -> None:
    with naming(self):
      self.fs.get_file(str(self), str(local))


def _file_system(scheme: str, uri: str) -> Any:
  import fsspec

  logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints the traceback of every error that it raises
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
def naming(path: RemotePath) -> Iterator[None]:
  """Errors of stores and their libraries, of many types, as OSErrors that name the path."""
  try:
    yield
  except (UserError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError):
    raise
  except Exception as error:
    kind = PermissionError if _DENIED.search(f"{type(error).__name__} {error}") else OSError
    text = " ".join(str(error).split()) or type(error).__name__
    raise kind(None, f"{path}: {text[:500]}") from error
