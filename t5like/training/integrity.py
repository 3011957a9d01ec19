"""Whether a checkpoint is still what was written.

`checksums.json` holds size and CRC-32 of every file. It is written when the checkpoint is whole, in the background;
a run that is killed between the two leaves a checkpoint without it, which is then judged by reading it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from t5like.errors import UserError
from t5like.training.agreement import first_process_decides
from t5like.training.checkpoint_folders import (
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
from t5like.training.stored_arrays import Unreadable, try_reading

CHECKSUMS = "checksums.json"
_CONTENTS = "_CHECKPOINT_METADATA"  # Orbax's list of a checkpoint's items
_BLOCK = 2**22


@dataclasses.dataclass(frozen=True)
class Newest:
  """The newest whole checkpoint of a directory, and what happened to newer ones, in words to print."""

  step: int | None  # None: there is no checkpoint at all
  checkpoint: Path | None
  story: tuple[str, ...] = ()  # on process 0


def newest_whole(model_dir: str | Path, move: bool = True) -> Newest:
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

  step = first_process_decides(choose)
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
    files = json.loads((checkpoint / CHECKSUMS).read_text())["files"]
    expected = {name: (int(size), int(crc)) for name, (size, crc) in files.items()}
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return f"its {CHECKSUMS} cannot be read"
  chosen = tuple(f"{item}/" for item in items)
  expected = {name: value for name, value in expected.items() if not chosen or name.startswith(chosen)}
  return _damage_of_sizes(checkpoint, expected) or _damage_of_contents(checkpoint, expected)


def write_checksums(checkpoint: Path, threads: int = 2) -> None:
  """Few threads: the run goes on meanwhile."""
  names = sorted(str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file())
  names = [name for name in names if not name.startswith(CHECKSUMS)]
  with ThreadPoolExecutor(threads, "checksums") as pool:
    crcs = pool.map(_crc, (checkpoint / name for name in names))
    files = {name: (os.path.getsize(checkpoint / name), crc) for name, crc in zip(names, crcs, strict=True)}
  fresh = checkpoint / f"{CHECKSUMS}.tmp"
  with open(fresh, "w") as file:
    json.dump({"files": files}, file)
    file.flush()
    os.fsync(file.fileno())
  fresh.replace(checkpoint / CHECKSUMS)


def _damage_of_sizes(checkpoint: Path, expected: dict[str, tuple[int, int]]) -> str | None:
  for name, (size, _) in expected.items():
    try:
      found = os.path.getsize(checkpoint / name)
    except OSError:
      return f"its {name} is missing"
    if found != size:
      return f"its {name} is {abs(size - found):,} bytes {'short' if found < size else 'too long'}"
  return None


def _damage_of_contents(checkpoint: Path, expected: dict[str, tuple[int, int]]) -> str | None:
  def judge(name: str) -> str | None:
    try:
      return None if _crc(checkpoint / name) == expected[name][1] else f"its {name} has other bytes than were written"
    except OSError as error:
      return f"its {name} cannot be read: {error.strerror}"

  with ThreadPoolExecutor(8, "checksums") as pool:
    return next((damage for damage in pool.map(judge, expected) if damage), None)


def _crc(path: Path) -> int:
  crc = 0
  with open(path, "rb") as file:
    while block := file.read(_BLOCK):
      crc = zlib.crc32(block, crc)
  return crc


def _damage_by_reading(checkpoint: Path) -> str | None:
  """Without checksums: every item that was written must be there, and every array must be readable."""
  try:
    promised = json.loads((checkpoint / _CONTENTS).read_text())["item_handlers"]
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
