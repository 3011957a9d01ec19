"""Finds original files in a folder, plain or compressed, and reads them line by line."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import itertools
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.source_files import check_is_file

COMPRESSIONS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}

# Words in file names that identify a split.
SPLIT_WORDS = {
  "train": ("train", "training"),
  "validation": ("validation", "valid", "val", "dev"),
  "test": ("test",),
}


@dataclasses.dataclass(frozen=True)
class OriginalFile:
  """A file, or a member of a zip archive."""

  path: Path
  member: str | None = None

  def __str__(self) -> str:
    return str(self.path) if self.member is None else f"{self.path}/{self.member}"

  @property
  def name(self) -> str:
    """Returns the file name without the suffix of a compression."""
    return Path(_plain_name(self.member or self.path.name)).name

  def open(self) -> BinaryIO:
    """Opens the uncompressed bytes."""
    check_is_file(self.path)
    if self.path.suffix == ".zip":
      return _open_member(self)
    if storage.is_remote(self.path):
      raw = self.path.open("rb")
      return COMPRESSIONS[self.path.suffix](raw, "rb") if self.path.suffix in COMPRESSIONS else raw
    return COMPRESSIONS.get(self.path.suffix, open)(self.path, "rb")

  def text(self) -> str:
    """Returns the entire content."""
    return "".join(line for _, line in self.lines(keep_ends=True))

  def lines(self, newline: str | None = None, keep_ends: bool = False) -> Iterator[tuple[int, str]]:
    """Yields numbered lines. `newline` is as in `open`: by default \\r\\n and \\r also end a line."""
    number = 0
    try:
      # utf-8-sig: Microsoft's files start with a byte order mark, which is not part of the first column.
      with self.open() as data, io.TextIOWrapper(data, encoding="utf-8-sig", newline=newline) as text:
        for number, line in enumerate(text, 1):
          yield number, line if keep_ends else line.removesuffix("\n")
    except UnicodeDecodeError:
      bad, found = self._undecodable()
      raise self.malformed(bad, "UTF-8 text", found) from None
    except (EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, gzip.BadGzipFile) as error:
      raise UserError(
        "a compressed file is damaged", file=f"{self}, after line {number}", because=error, try_="download it again"
      ) from None
    except OSError as error:
      raise UserError("cannot read a file", file=self, because=error.strerror or error) from None

  def blocks(
    self, is_separator: Callable[[str], bool] = lambda line: not line.strip()
  ) -> Iterator[list[tuple[int, str]]]:
    """Yields runs of numbered lines between separators, which are empty lines by default."""
    for separates, lines in itertools.groupby(self.lines(), lambda numbered: is_separator(numbered[1])):
      if not separates:
        yield list(lines)

  def malformed(self, line: int | str, expected: str, found: object) -> UserError:
    """Returns the error for an invalid row; `line` may be a path inside JSON."""
    shown = found if isinstance(found, str) else repr(found)
    shown = " ".join(shown.split()) if len(shown) < 200 else " ".join(shown[:200].split()) + " ..."
    return UserError(
      "a row does not match its format", file=f"{self}:{line}", expected=expected, found=shown or "nothing"
    )

  def _undecodable(self) -> tuple[int, str]:
    number, line = 0, b""
    with self.open() as data:
      for number, line in enumerate(data, 1):
        try:
          line.decode("utf-8")
        except UnicodeDecodeError as error:
          return number, f"the byte 0x{line[error.start]:02x} at position {error.start + 1} of the line"
    return number, repr(line[-20:])


def _open_member(file: OriginalFile) -> BinaryIO:
  archive = zipfile.ZipFile(file.path.open("rb") if storage.is_remote(file.path) else file.path)
  members = [m for m in archive.namelist() if not m.endswith("/") and not m.startswith("__MACOSX")]
  if file.member is None and len(members) != 1:
    raise UserError("an archive contains more than one file", file=file.path, found=", ".join(members[:5]))
  return archive.open(file.member or members[0])


def _plain_name(name: str) -> str:
  stem, suffix = os.path.splitext(name)
  return stem if suffix in (*COMPRESSIONS, ".zip") else name


def split_named_by(name: str) -> str | None:
  """Returns the split in a file name: `wnut17train.conll` is train, `emerging.dev.conll` validation."""
  words = re.findall("[a-z]+", name.lower())
  for split, names in SPLIT_WORDS.items():
    if any(word in names for word in words):
      return split
  return None


class Folder:
  """The folder of the original files. `given` maps a split to its files and takes precedence over any search."""

  def __init__(self, root: str | Path, given: Mapping[str, Sequence[str | Path]] | None = None, single: bool = True):
    self.root = Path(root).expanduser()
    # Whether a single data set is requested: then its files may be directly in the folder, whatever its name.
    self.single = single
    if not self.root.is_dir():
      raise UserError("the folder of the original files is missing", given=self.root)
    self.given = {split: [self._given(path) for path in paths] for split, paths in (given or {}).items()}

  def find(self, *candidates: str) -> OriginalFile | None:
    """Returns the first of `candidates` (such as `SST-2/train.tsv`) found here, one level down, or in an archive."""
    for candidate in candidates:
      if found := self._find_one(candidate):
        return found
    return None

  def file_of(self, split: str, *candidates: str) -> OriginalFile | None:
    """Returns the given file of a split, or else the first of `candidates` that is found."""
    given = self.given.get(split)
    return given[0] if given else self.find(*candidates)

  def all_files(self) -> list[OriginalFile]:
    """Returns every file directly in the folder."""
    return [OriginalFile(path) for path in sorted(self.root.iterdir()) if path.is_file() and path.name[0] != "."]

  def _given(self, path: str | Path) -> OriginalFile:
    for full in (Path(path).expanduser(), self.root / path):
      if full.is_file():
        return OriginalFile(full)
    raise UserError("a file named by --files is missing", given=path)

  def _find_one(self, candidate: str) -> OriginalFile | None:
    if found := _within(self.root, candidate):
      return found
    top, _, rest = candidate.rpartition("/")
    if rest and (self.single or top.casefold() == self.root.name.casefold()) and (found := _within(self.root, rest)):
      return found
    below = [found for child in sorted(self.root.iterdir()) if child.is_dir() and (found := _within(child, candidate))]
    if len(below) > 1:
      raise UserError(
        f"found {candidate} more than once", found=", ".join(map(str, below)), try_="--from with one of the folders"
      )
    return below[0] if below else None


def _within(folder: Path, candidate: str) -> OriginalFile | None:
  """Finds `candidate` under `folder`, ignoring case and compression, or inside `<its folder>.zip`."""
  *tops, name = candidate.split("/")
  for part in tops:
    archives = [p for p in folder.glob("*.zip") if p.stem.casefold() == part.casefold()]
    match = _child(folder, (part,))
    if match is None:
      return _archived(archives[0], candidate) if archives else None
    folder = match
  match = _child(folder, (name, *(name + suffix for suffix in (*COMPRESSIONS, ".zip"))))
  return OriginalFile(match) if match and match.is_file() else None


def _child(folder: Path, names: Sequence[str]) -> Path | None:
  if not folder.is_dir():
    return None
  children = {child.name.casefold(): child for child in folder.iterdir()}
  return next((children[n.casefold()] for n in names if n.casefold() in children), None)


def _archived(archive: Path, candidate: str) -> OriginalFile | None:
  try:
    members = zipfile.ZipFile(archive).namelist()
  except zipfile.BadZipFile as error:
    raise UserError("an archive is damaged", file=archive, because=error, try_="download it again") from None
  wanted = [m for m in members if m == candidate or m == candidate.rpartition("/")[2]]
  return OriginalFile(archive, wanted[0]) if wanted else None
