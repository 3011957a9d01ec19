"""The local mirror of a remote token cache (such as gs://), so that tokens can be memory-mapped.

One process of every host copies the shards for all, below ~/.cache/t5like/mirror (storage.py); each is checked against
the manifest before it gets its name. Remote caches are also built there and uploaded when complete, the manifest last.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from t5like.data.shards import BLOCK, checksums, repair_command
from t5like.errors import UserError
from t5like.files import data_card, storage
from t5like.files.locks import hold
from t5like.files.remote_path import RemotePath

MANIFEST = "cache.json"
_TRANSFERS = 8
_STALE_SECONDS = 600.0  # without a heartbeat, after which a process that copies counts as dead


def copy_to_mirror(folder: RemotePath, manifest: Mapping[str, Any], text: bytes, rebuild_command: str) -> Path:
  """Copies missing files of a cache to this machine and returns the local folder; `text` is the raw manifest."""
  local, files = storage.mirror_folder(folder), _files(manifest)
  if _is_copied(local, text) and not _missing(local, files, trust=True):
    return local
  with hold(local.with_name(f"{local.name}.lock"), _STALE_SECONDS, wait=math.inf, heartbeat=_STALE_SECONDS / 10):
    # Files already checked against this manifest are compared by size only; damage is detected as they are read.
    is_known = _is_copied(local, text)
    missing = _missing(local, files, trust=is_known)
    size = sum(about["bytes"] for about in missing.values())
    _check_disk_space(local, size)
    if missing:
      print(f"copying token cache {folder} to {local} ({len(missing)} files, {size / 1e9:.2f} GB)", flush=True)
    with ThreadPoolExecutor(_TRANSFERS, "mirror") as pool:
      for name in pool.map(lambda name: _fetch(folder / name, local / name, files[name], rebuild_command), missing):
        del name
    if not is_known:
      local.mkdir(parents=True, exist_ok=True)
      storage.write_atomic(local / MANIFEST, text)
  return local


def _is_copied(local: Path, manifest: bytes) -> bool:
  return (local / MANIFEST).is_file() and (local / MANIFEST).read_bytes() == manifest


def _missing(local: Path, files: Mapping[str, Mapping[str, Any]], trust: bool) -> dict[str, Mapping[str, Any]]:
  return {name: about for name, about in files.items() if not _is_intact(local / name, about, trust)}


def check_remote(folder: RemotePath, manifest: Mapping[str, Any], rebuild_command: str) -> None:
  """Compares the sizes of all files with the manifest in one listing; copies nothing."""
  present = folder.files()
  for name, about in _files(manifest).items():
    found = present[name]["size"] if name in present else None
    if found != about["bytes"]:
      what = "is missing" if found is None else "has the wrong size"
      raise UserError(
        f"a file of the token cache {what}",
        file=folder / name,
        expected=about["bytes"],
        try_=repair_command(rebuild_command, name.rpartition(".")[0]),
      )


def publish(local: Path, folder: RemotePath) -> None:
  """Uploads a cache. Its manifest, without which a folder is not a cache, is removed first and uploaded last."""
  (folder / MANIFEST).unlink(missing_ok=True)
  storage.upload_tree(local, folder, last=MANIFEST)
  expected = {MANIFEST, *data_card.FILES, *_files(json.loads((local / MANIFEST).read_bytes()))}
  for name in set(folder.files()) - expected:
    (folder / name).unlink(missing_ok=True)


def _files(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
  return {f"{s['name']}.{kind}": about for s in manifest["shards"] for kind, about in s["files"].items()}


def _is_intact(path: Path, about: Mapping[str, Any], trust: bool) -> bool:
  if not path.is_file() or path.stat().st_size != about["bytes"]:
    return False
  return trust or _first_bad_block(path, about) is None


def _first_bad_block(path: Path, about: Mapping[str, Any]) -> int | None:
  with path.open("rb") as file:
    return next((n for n, crc in enumerate(checksums(about)) if zlib.crc32(file.read(BLOCK)) != crc), None)


def _fetch(remote: RemotePath, local: Path, about: Mapping[str, Any], rebuild_command: str) -> None:
  def check(copy: Path) -> None:
    size, bad = copy.stat().st_size, _first_bad_block(copy, about)
    if size != about["bytes"] or bad is not None:
      raise UserError(
        "a file of the token cache does not match its manifest",
        file=remote,
        found=f"{size:,} of {about['bytes']:,} bytes" if size != about["bytes"] else f"wrong checksum of block {bad}",
        try_=repair_command(rebuild_command, remote.stem),
      )

  try:
    storage.fetch(remote, local, check)
  except OSError as error:
    raise UserError("cannot copy a file of the token cache", file=remote, because=error.strerror or error) from None


def _check_disk_space(local: Path, needed: int) -> None:
  free = storage.free_bytes(local)
  if free < needed:
    raise UserError(
      "not enough disk space for the local copy of the token cache",
      folder=local,
      free=f"{free / 1e9:.2f} GB",
      needed=f"{needed / 1e9:.2f} GB",
      try_=f"free some space, or set {storage.MIRROR_VARIABLE}=FOLDER to use another disk",
    )
