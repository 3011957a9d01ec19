"""IMDb reviews: one text file per review in the folders of `aclImdb`, or its archive (Maas et al. 2011)."""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Iterator
from pathlib import Path

from t5like.errors import UserError
from t5like.tasks.preparation import members
from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit
from t5like.tasks.preparation.files import Folder

_TOP = "aclImdb"
_ARCHIVE = "aclImdb_v1.tar.gz"
# The folders of each split, and the class of their reviews; -1: withheld.
_FOLDERS = {
  "train": {"train/neg": "neg", "train/pos": "pos"},
  "test": {"test/neg": "neg", "test/pos": "pos"},
  "unsupervised": {"train/unsup": -1},
}


def find_splits(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  top = next((place for place in (folder.root, folder.root / _TOP) if (place / "train").is_dir()), None)
  archive = folder.root / _ARCHIVE
  if folder.given or (top is None and not archive.is_file()):
    splits = members.find_splits(dataset, folder)  # converted to JSON lines
    if any(split.rows for split in splits):
      return splits
  splits = []
  for split, classes in _FOLDERS.items():
    rows = None
    if top is not None and any((top / name).is_dir() for name in classes):
      rows = functools.partial(_rows_of_folders, top=top, classes=classes)
    elif top is None and archive.is_file():
      rows = functools.partial(_rows_of_archive, archive=archive, classes=classes)
    splits.append(SourceSplit(split, rows, f"{_TOP}/{next(iter(classes))}/*.txt, or {_ARCHIVE}"))
  return splits


def _rows_of_folders(split: SourceSplit, top: Path, classes: dict[str, str | int]) -> Iterator[KeyedRow]:
  del split
  for name, label in classes.items():
    for path in sorted((top / name).glob("*.txt")):
      yield _row(f"{name}/{path.name}", path.read_bytes(), label, path)


def _rows_of_archive(split: SourceSplit, archive: Path, classes: dict[str, str | int]) -> Iterator[KeyedRow]:
  del split
  try:
    with tarfile.open(archive, "r|*") as files:  # read once, in order: seeking in a compressed archive is slow
      for member in files:
        place, _, name = member.name.removeprefix("./").removeprefix(f"{_TOP}/").rpartition("/")
        if place in classes and name.endswith(".txt") and member.isfile():
          yield _row(f"{place}/{name}", files.extractfile(member).read(), classes[place], f"{archive}/{member.name}")
  except (tarfile.TarError, EOFError, OSError) as error:
    raise UserError("an archive is damaged", file=archive, because=error, try_="download it again") from None


def _row(name: str, content: bytes, label: str | int, place: Path | str) -> KeyedRow:
  """Returns a row; the key, which determines the order, is the path in the archive, as in TFDS."""
  try:
    return f"{_TOP}/{name}", {"text": content.strip().decode("utf-8"), "label": label}
  except UnicodeDecodeError as error:
    raise UserError("a review is not UTF-8 text", file=place, because=error.reason) from None
