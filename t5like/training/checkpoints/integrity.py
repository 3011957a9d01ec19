"""Checks that a checkpoint still has the bytes that were written.

`checksums.json` has the size and CRC-32 of every file. It is written in the background once the checkpoint is complete;
a run that is killed in between leaves a checkpoint without it, which is checked by reading its arrays.

An object store such as gs:// computes its own checksums on upload: these are stored instead, as "crc32c:...", and
compared with the store's listing, so that nothing is read back.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.files import storage
from t5like.parallel.process_zero import run_on_process_zero
from t5like.training.checkpoints.arrays import Unreadable, check_readable
from t5like.training.checkpoints.folders import (
  FOLDER,
  METADATA,
  PARAMS,
  TRAINING,
  checkpoint_steps,
  checkpoints_folder,
  has_training_state,
  read_description,
  set_aside,
)

CHECKSUMS = "checksums.json"
_CONTENTS = "_CHECKPOINT_METADATA"  # Orbax's list of a checkpoint's items
_BLOCK = 2**22

Checksum = int | str  # CRC-32, or the store's own


@dataclasses.dataclass(frozen=True)
class NewestCheckpoint:
  """The newest intact checkpoint of a directory, with messages about newer, damaged ones."""

  step: int | None  # None: the directory has no checkpoint
  checkpoint: Path | None
  messages: tuple[str, ...] = ()  # on process 0 only


def newest_intact(model_dir: str | Path, move: bool = True) -> NewestCheckpoint:
  """Returns the newest intact checkpoint and, with `move`, renames newer, damaged ones to `damaged-<step>`.

  Must be called by all processes, by the sole trainer of the directory; process 0 decides for all. Raises UserError and
  moves nothing if there are checkpoints but none is intact: starting over is for the user to decide.
  """
  folder, messages = checkpoints_folder(model_dir), []

  def choose() -> int:
    damaged = {}
    for step in reversed(checkpoint_steps(model_dir)):
      damage = find_damage(folder / str(step))
      if damage is None:
        messages.extend(_set_aside_damaged(folder, damaged, step, move))
        return step
      damaged[step] = damage
    if damaged:
      raise UserError(
        "no checkpoint of this run is intact",
        looked=folder,
        damaged="\n".join(f"step {step}: {damage}" for step, damage in damaged.items()),
        try_="restore them from a backup, or move them away to start from scratch",
      )
    return -1

  step = run_on_process_zero(choose)
  return NewestCheckpoint(None, None) if step < 0 else NewestCheckpoint(step, folder / str(step), tuple(messages))


def _set_aside_damaged(folder: Path, damaged: dict[int, str], intact: int, move: bool) -> list[str]:
  lines = []
  for step, damage in damaged.items():
    moved = f"moved to {FOLDER}/{set_aside(folder / str(step)).name}, " if move else ""
    lines.append(f"checkpoint {step} is damaged ({damage}): {moved}resuming from step {intact}")
  return lines


def find_damage(checkpoint: Path) -> str | None:
  """Returns a description of the damage, or None for an intact checkpoint."""
  return verify_checksums(checkpoint) if has_checksums(checkpoint) else _damage_by_reading(checkpoint)


def has_checksums(checkpoint: Path) -> bool:
  return (checkpoint / CHECKSUMS).exists()


def verify_checksums(checkpoint: Path, items: Iterable[str] = ()) -> str | None:
  """Returns the damage that the checksums show, in all files or in those of `items`; None if there is none."""
  try:
    files = storage.read_json(checkpoint / CHECKSUMS)["files"]
    expected = {name: (int(size), crc if isinstance(crc, str) else int(crc)) for name, (size, crc) in files.items()}
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return f"its {CHECKSUMS} cannot be read"
  chosen = tuple(f"{item}/" for item in items)
  expected = {name: value for name, value in expected.items() if not chosen or name.startswith(chosen)}
  present = _present(checkpoint)
  return _wrong_size(expected, present) or _wrong_bytes(checkpoint, expected, present)


def write_checksums(checkpoint: Path) -> None:
  """Writes `checksums.json`, with few threads because the run continues meanwhile."""
  present = {name: found for name, found in _present(checkpoint).items() if not name.startswith(CHECKSUMS)}
  with ThreadPoolExecutor(2, "checksums") as pool:
    sums = pool.map(lambda name: present[name][1] or _crc(checkpoint / name), present)
    files = {name: (present[name][0], crc) for name, crc in zip(present, sums, strict=True)}
  storage.write_atomic(checkpoint / CHECKSUMS, json.dumps({"files": files}), sync=True)


def _present(checkpoint: Path) -> dict[str, tuple[int, str | None]]:
  """Returns the size of every file and, on a store, its checksum."""
  if storage.is_remote(checkpoint):
    return {name: (info["size"], storage.store_checksum(info)) for name, info in checkpoint.files().items()}
  files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
  return {str(path.relative_to(checkpoint)): (path.stat().st_size, None) for path in files}


def _wrong_size(expected: Mapping[str, tuple[int, Checksum]], present: Mapping[str, tuple[int, Any]]) -> str | None:
  for name, (size, _) in expected.items():
    if name not in present:
      return f"its {name} is missing"
    found = present[name][0]
    if found != size:
      return f"its {name} is {abs(size - found):,} bytes {'short' if found < size else 'too long'}"
  return None


def _wrong_bytes(
  checkpoint: Path, expected: Mapping[str, tuple[int, Checksum]], present: Mapping[str, tuple[int, str | None]]
) -> str | None:
  def check(name: str) -> str | None:
    try:
      same = _is_same(checkpoint / name, expected[name][1], present[name][1])
      return None if same else f"its {name} does not match its checksum"
    except OSError as error:
      return f"its {name} cannot be read: {error.strerror}"

  with ThreadPoolExecutor(8, "checksums") as pool:
    return next((damage for damage in pool.map(check, expected) if damage), None)


def _is_same(path: Path, written: Checksum, listed: str | None) -> bool:
  """Compares checksums; of different kinds where a checkpoint was copied from a store to a disk or back."""
  if isinstance(written, int):
    return _crc(path) == written
  kind = written.partition(":")[0]
  if listed is not None and listed.partition(":")[0] == kind:
    return listed == written
  return kind != "crc32c" or _crc32c(path) in (written, None)


def _crc(path: Path) -> int:
  crc = 0
  for block in _blocks(path):
    crc = zlib.crc32(block, crc)
  return crc


def _crc32c(path: Path) -> str | None:
  """Returns the checksum in the format of gs://; None without google_crc32c, which is installed with gcsfs."""
  try:
    import google_crc32c
  except ImportError:
    return None
  crc = functools.reduce(google_crc32c.extend, _blocks(path), 0)
  return f"crc32c:{base64.b64encode(crc.to_bytes(4, 'big')).decode()}"


def _blocks(path: Path) -> Iterator[bytes]:
  with path.open("rb") as file:
    while block := file.read(_BLOCK):
      yield block


def _damage_by_reading(checkpoint: Path) -> str | None:
  """Checks a checkpoint without checksums: every item must exist and every array must be readable."""
  try:
    listed = storage.read_json(checkpoint / _CONTENTS)["item_handlers"]
    missing = [name for name in listed if not (checkpoint / name).is_dir()]
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return f"its {_CONTENTS} cannot be read"
  if missing:
    return f"its {missing[0]} is missing"
  try:
    read_description(checkpoint)
    for name in (PARAMS, TRAINING) if has_training_state(checkpoint) else (PARAMS,):
      check_readable(checkpoint / name)
  except UserError:
    return f"its {METADATA}/{METADATA} cannot be read"
  except Unreadable as error:
    return f"its {name} cannot be read: {error}"
  return None
