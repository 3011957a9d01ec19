"""The local copy of a token cache that lies on a store such as gs://: what is read a million times is mapped memory.

Every host copies the shards once, below ~/.cache/t5like/mirror (storage.py), each checked against the manifest before
it gets its name. What is built is built there, too, and sent when it is whole, the manifest last.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from t5like.data.shards import BLOCK
from t5like.errors import UserError
from t5like.files import storage
from t5like.files.remote_path import RemotePath

MANIFEST = "cache.json"
_TRANSFERS = 8


def mirrored(folder: RemotePath, manifest: Mapping[str, Any], text: bytes) -> Path:
  """The local folder, with all files of the cache whose manifest reads `text`."""
  local = storage.mirror_folder(folder)
  files = _files(manifest)
  # Files that were compared with this very manifest are known by their size; damage is found as they are read.
  known = (local / MANIFEST).is_file() and (local / MANIFEST).read_bytes() == text
  wanted = {name: about for name, about in files.items() if not _is_there(local / name, about, trust=known)}
  _check_room(local, sum(about["bytes"] for about in wanted.values()))
  if wanted:
    size = sum(about["bytes"] for about in wanted.values()) / 1e9
    print(f"copying the token cache {folder}: {len(wanted)} files, {size:.2f} GB, to {local}", flush=True)
  with ThreadPoolExecutor(_TRANSFERS, "mirror") as pool:
    for name in pool.map(lambda name: _fetch(folder / name, local / name, files[name]), wanted):
      del name
  if not known:
    local.mkdir(parents=True, exist_ok=True)
    storage.write_whole(local / MANIFEST, text)
  return local


def check_remote(folder: RemotePath, manifest: Mapping[str, Any], rebuild_command: str) -> None:
  """Compares the sizes of all files with the manifest, by one listing; nothing is copied."""
  present = folder.files()
  for name, about in _files(manifest).items():
    found = present[name]["size"] if name in present else None
    if found != about["bytes"]:
      what = "is missing" if found is None else "has the wrong size"
      raise UserError(
        f"a file of the token cache {what}", file=folder / name, expected=about["bytes"], try_=rebuild_command
      )


def publish(local: Path, folder: RemotePath) -> None:
  """Sends a cache that was built here. Without its manifest a folder is no cache: that goes first and comes last."""
  (folder / MANIFEST).unlink(missing_ok=True)
  storage.upload_tree(local, folder, last=MANIFEST)
  wanted = {MANIFEST, *_files(json.loads((local / MANIFEST).read_bytes()))}
  for name in set(folder.files()) - wanted:
    (folder / name).unlink(missing_ok=True)


def _files(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
  return {f"{s['name']}.{kind}": about for s in manifest["shards"] for kind, about in s["files"].items()}


def _is_there(path: Path, about: Mapping[str, Any], trust: bool) -> bool:
  if not path.is_file() or path.stat().st_size != about["bytes"]:
    return False
  return trust or _first_bad_block(path, about) is None


def _first_bad_block(path: Path, about: Mapping[str, Any]) -> int | None:
  with path.open("rb") as file:
    return next((n for n, crc in enumerate(about["crc32"]) if zlib.crc32(file.read(BLOCK)) != crc), None)


def _fetch(remote: RemotePath, local: Path, about: Mapping[str, Any]) -> None:
  def check(copy: Path) -> None:
    size, bad = copy.stat().st_size, _first_bad_block(copy, about)
    if size != about["bytes"] or bad is not None:
      raise UserError(
        "a file of the token cache is not what its manifest says",
        file=remote,
        found=f"{size:,} of {about['bytes']:,} bytes" if size != about["bytes"] else f"other bytes in block {bad}",
        try_="t5like cache ... --force builds it anew",
      )

  try:
    storage.fetch(remote, local, check)
  except OSError as error:
    raise UserError(
      "a file of the token cache cannot be copied", file=remote, because=error.strerror or error
    ) from None


def _check_room(local: Path, needed: int) -> None:
  existing = local
  while not existing.exists():
    existing = existing.parent
  free = shutil.disk_usage(existing).free
  if free < needed:
    raise UserError(
      "this machine has no room for its copy of the token cache",
      folder=local,
      free=f"{free / 1e9:.2f} GB",
      needed=f"{needed / 1e9:.2f} GB",
      try_=f"make room, or another disk: {storage.MIRROR_VARIABLE}=FOLDER in the environment",
    )
