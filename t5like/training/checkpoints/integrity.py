"""Whether a checkpoint is still what was written.

`checksums.json` holds size and CRC-32 of every file. It is written when the checkpoint is whole, in the background;
a run that is killed between the two leaves a checkpoint without it, which is then judged by reading it.

A store such as gs:// has checksums of its own, taken as the bytes arrive: these are written down instead, as
"crc32c:...", and compared with what its listing says, so that nothing is read back.
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
from t5like.training.checkpoints.arrays import Unreadable, try_reading
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
_STORE_SUMS = ("crc32c", "ETag", "etag")  # as stores call them; the same bytes in the same place have the same

Sum = int | str  # CRC-32, or what a store says


@dataclasses.dataclass(frozen=True)
class Newest:
  """The newest whole checkpoint of a directory, and what happened to newer ones, in words to print."""

  step: int | None  # None: there is no checkpoint at all
  checkpoint: Path | None
  story: tuple[str, ...] = ()  # on process 0


def newest_intact(model_dir: str | Path, move: bool = True) -> Newest:
  """The checkpoint to go on from. Damaged ones that are newer are set aside (`move`) as `damaged-<step>`.

  To be called by all processes, in the sole trainer of the directory; process 0 looks and all agree. Where no
  checkpoint is whole that is an error, and nothing is moved: beginning anew is for the user to decide.
  """
  folder, story = checkpoints_folder(model_dir), []

  def choose() -> int:
    damaged = {}
    for step in reversed(checkpoint_steps(model_dir)):
      damage = find_damage(folder / str(step))
      if damage is None:
        story.extend(_tell(folder, damaged, step, move))
        return step
      damaged[step] = damage
    if damaged:
      raise UserError(
        "no checkpoint of this run is whole",
        looked=folder,
        damaged="\n".join(f"step {step}: {damage}" for step, damage in damaged.items()),
        try_="bring them back from a copy, or move them away to begin anew",
      )
    return -1

  step = run_on_process_zero(choose)
  return Newest(None, None) if step < 0 else Newest(step, folder / str(step), tuple(story))


def _tell(folder: Path, damaged: dict[int, str], whole: int, move: bool) -> list[str]:
  lines = []
  for step, damage in damaged.items():
    place = f"moved to {FOLDER}/{set_aside(folder / str(step)).name}, " if move else ""
    lines.append(f"checkpoint {step} is damaged ({damage}): {place}going on from step {whole}")
  return lines


def find_damage(checkpoint: Path) -> str | None:
  """What is wrong with a checkpoint, in words; None where it is whole."""
  return check_sums(checkpoint) if has_checksums(checkpoint) else _damage_by_reading(checkpoint)


def has_checksums(checkpoint: Path) -> bool:
  return (checkpoint / CHECKSUMS).exists()


def check_sums(checkpoint: Path, items: Iterable[str] = ()) -> str | None:
  """Damage that the checksums show, in all files or in those of `items`."""
  try:
    files = storage.read_json(checkpoint / CHECKSUMS)["files"]
    expected = {name: (int(size), crc if isinstance(crc, str) else int(crc)) for name, (size, crc) in files.items()}
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return f"its {CHECKSUMS} cannot be read"
  chosen = tuple(f"{item}/" for item in items)
  expected = {name: value for name, value in expected.items() if not chosen or name.startswith(chosen)}
  present = _present(checkpoint)
  return _damage_of_sizes(expected, present) or _damage_of_contents(checkpoint, expected, present)


def write_checksums(checkpoint: Path, threads: int = 2) -> None:
  """Few threads: the run goes on meanwhile."""
  present = {name: found for name, found in _present(checkpoint).items() if not name.startswith(CHECKSUMS)}
  with ThreadPoolExecutor(threads, "checksums") as pool:
    sums = pool.map(lambda name: present[name][1] or _crc(checkpoint / name), present)
    files = {name: (present[name][0], crc) for name, crc in zip(present, sums, strict=True)}
  storage.write_atomic(checkpoint / CHECKSUMS, json.dumps({"files": files}), sync=True)


def _present(checkpoint: Path) -> dict[str, tuple[int, str | None]]:
  """Size and, on a store, its checksum of every file there is."""
  if storage.is_remote(checkpoint):
    return {name: (info["size"], _store_sum(info)) for name, info in checkpoint.files().items()}
  files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
  return {str(path.relative_to(checkpoint)): (path.stat().st_size, None) for path in files}


def _store_sum(info: Mapping[str, Any]) -> str | None:
  return next((f"{name}:{info[name]}" for name in _STORE_SUMS if info.get(name)), None)


def _damage_of_sizes(expected: Mapping[str, tuple[int, Sum]], present: Mapping[str, tuple[int, Any]]) -> str | None:
  for name, (size, _) in expected.items():
    if name not in present:
      return f"its {name} is missing"
    found = present[name][0]
    if found != size:
      return f"its {name} is {abs(size - found):,} bytes {'short' if found < size else 'too long'}"
  return None


def _damage_of_contents(
  checkpoint: Path, expected: Mapping[str, tuple[int, Sum]], present: Mapping[str, tuple[int, str | None]]
) -> str | None:
  def judge(name: str) -> str | None:
    try:
      same = _is_same(checkpoint / name, expected[name][1], present[name][1])
      return None if same else f"its {name} has other bytes than were written"
    except OSError as error:
      return f"its {name} cannot be read: {error.strerror}"

  with ThreadPoolExecutor(8, "checksums") as pool:
    return next((damage for damage in pool.map(judge, expected) if damage), None)


def _is_same(path: Path, written: Sum, listed: str | None) -> bool:
  """A checkpoint may have been copied from a store to a disk or back: the one's checksum is then not the other's."""
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
  """As gs:// writes it; None without the package that computes it, which comes with gcsfs."""
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
  """Without checksums: every item that was written must be there, and every array must be readable."""
  try:
    promised = storage.read_json(checkpoint / _CONTENTS)["item_handlers"]
    gone = [name for name in promised if not (checkpoint / name).is_dir()]
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return f"its {_CONTENTS} cannot be read"
  if gone:
    return f"its {gone[0]} is missing"
  try:
    read_description(checkpoint)
    for name in (PARAMS, TRAINING) if has_training_state(checkpoint) else (PARAMS,):
      try_reading(checkpoint / name)
  except UserError:
    return f"its {METADATA}/{METADATA} cannot be read"
  except Unreadable as error:
    return f"its {name} cannot be read: {error}"
  return None
