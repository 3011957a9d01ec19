"""The identity of source files, to notice that a token cache was built from other ones."""

from __future__ import annotations

import collections
import fnmatch
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.files import storage

Identity = Mapping[str, Any]  # path, bytes and hashes
_PART = 1 << 20  # bytes hashed at the start, middle and end of a file
_WHOLE = 1 << 28  # bytes of files that are hashed as a whole, too
_READERS = 16  # files at a time
_LISTED = 2000  # more files on a store are not read: its listing has their checksums


def file_identities(paths: Sequence[str]) -> list[dict[str, Any]]:
  """Returns sizes and hashes of files."""
  if len(paths) > _LISTED and all(map(storage.is_remote, paths)):
    listed = _listings(paths)
    return [{"path": path} | listed.get(path, {}) for path in paths]
  return _read(paths)


def check_is_file(path: Path) -> None:
  """Raises UserError for a device, which may never end; a pipe is read like a file."""
  if not storage.is_remote(path) and path.exists() and not (path.is_file() or path.is_fifo()):
    raise UserError(f"{path} is not a file", expected="a file of text or rows, not a folder or a device")


def training_split(files: Mapping[str, Any]) -> str:
  """Returns the split of the user's own files that numbers the classes."""
  return "train" if "train" in files else next(iter(files))


def same_identities(written: Sequence[Identity], now: Sequence[Identity]) -> bool:
  """Whether files are the same; older caches do not record the hash of a whole file."""
  return len(written) == len(now) and all(
    was == {name: value for name, value in each.items() if name in was or name != "sha256"}
    for was, each in zip(written, now, strict=True)
  )


def changed_file(sources: Sequence[Identity], since: float = 0.0) -> str:
  """Returns which file is another one now, or ''; files that are not there are not needed any more.

  Files that were written after `since`, in seconds, are compared by their content, others by their size.
  """
  listings: dict[Path, dict[str, Any]] = {}  # of folders on a store, which may have a hundred thousand files
  newer = []
  for source in sources:
    path, time = storage.as_path(source["path"]), 0.0
    if storage.is_remote(path):
      if path.parent not in listings:
        listings[path.parent] = storage.files_in(path.parent)
      size = listings[path.parent].get(path.name, {}).get("size")
    else:
      about = path.stat() if path.is_file() else None
      size, time = (about.st_size, about.st_mtime) if about else (None, 0.0)
    if size is not None and size != source["bytes"]:
      return f"{path} has changed"
    if time > since and "sha256_of_parts" in source:
      newer.append(source)
  whole = sum(source["bytes"] for source in newer) <= _WHOLE
  for source, now in zip(newer, _read([source["path"] for source in newer], whole), strict=True):
    if any(now[name] != source[name] for name in ("sha256_of_parts", "sha256") if name in now and name in source):
      return f"{source['path']} has changed"
  return ""


def other_files(sources: Iterable[Identity], files: str) -> str:
  """Returns which file of a pattern is new or no longer read, or ''.

  They may be in another folder now, or not here at all; but then, the pattern has to match their names.
  """
  now = [storage.as_path(path) for path in storage.matching(files)]
  if not now:
    names, pattern = [storage.as_path(source["path"]).name for source in sources], storage.as_path(files).name
    return "" if fnmatch.filter(names, pattern) else f"no file matches {files}"
  sized = not any(map(storage.is_remote, now))  # by name alone on a store
  found = collections.Counter((path.name, path.stat().st_size if sized else None) for path in now)
  found.subtract((storage.as_path(source["path"]).name, source["bytes"] if sized else None) for source in sources)
  changed = [(name, count) for (name, _), count in found.items() if count]
  if not changed:
    return ""
  return f"{changed[0][0]} is {'new' if changed[0][1] > 0 else 'not read any more'}"


def _read(paths: Sequence[str], whole: bool = True) -> list[dict[str, Any]]:
  with ThreadPoolExecutor(_READERS, "identity") as pool:
    return list(pool.map(lambda path: _file_identity(path, whole), paths))


def _listings(paths: Sequence[str]) -> dict[str, dict[str, Any]]:
  """Returns size and checksum of the files in the folders of these files, as the store lists them."""
  found = {}
  for folder in {storage.as_path(path).parent for path in paths}:
    for name, about in storage.files_in(folder).items():
      found[str(folder / name)] = {"bytes": about["size"], "checksum": about.get("crc32c") or about.get("etag")}
  return found


def _file_identity(path: str, whole: bool) -> dict[str, Any]:
  """Returns size and a hash of start, middle and end of a file: hashing terabytes would take too long."""
  data = storage.as_path(path)
  if not data.is_file():
    return {"path": path}
  size = data.stat().st_size
  digest = hashlib.sha256()
  with data.open("rb") as content:
    for start in (0, (size - _PART) // 2, size - _PART):
      content.seek(max(start, 0))
      digest.update(content.read(_PART))
    found = {"path": path, "bytes": size, "sha256_of_parts": digest.hexdigest()}
    if whole and 3 * _PART < size <= _WHOLE and not storage.is_remote(path):
      content.seek(0)
      found["sha256"] = hashlib.file_digest(content, "sha256").hexdigest()
  return found
