"""Parallel text: one sentence per line in a file per language, or WMT's SGML (`newstest2014-deen-src.de.sgm`)."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator

from t5like.errors import UserError
from t5like.tasks.preparation import members
from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit
from t5like.tasks.preparation.files import Folder, OriginalFile, split_named_by

_SOURCE, _TARGET = ("src", "source"), ("tgt", "trg", "target", "ref")
_SEGMENT = re.compile(r'\s*<seg id="\d+">(.*)</seg>')


def find_splits(
  dataset: Dataset, folder: Folder, source_language: str | None = None, documents: str = "line"
) -> list[SourceSplit]:
  languages = tuple(dataset.features.keys())
  found = folder.all_files()
  if not folder.given and any(f.name.endswith(members.JSON_ENDINGS) for f in found):
    return members.find_splits(dataset, folder, documents)
  subsets = _subsets(dataset)
  pairs: dict[str, list[tuple[str, dict[str, OriginalFile]]]] = {}
  halves: dict[str, list[str]] = {}
  for (split, stem), files in _by_stem(found, folder, languages, subsets, source_language).items():
    if len(files) == 2:
      pairs.setdefault(split, []).append((stem, files))
    else:
      halves.setdefault(split, []).extend(file.path.name for file in files.values())
  a, b = sorted(languages)
  splits = []
  for split in dict.fromkeys((*subsets, "train", "validation", "test")):
    rows = functools.partial(_rows, pairs=pairs[split]) if split in pairs else None
    unpaired = f"; {', '.join(halves[split])} has no counterpart" if split in halves else ""
    splits.append(SourceSplit(split, rows, f"a pair of files such as {split}.{a} and {split}.{b}{unpaired}"))
  return splits


def _subsets(dataset: Dataset) -> dict[str, list[str]]:
  """Returns the corpora of each split in TFDS, `{"validation": ["newstest2013"]}`."""
  subsets = getattr(dataset.builder, "subsets", None) or {}
  return {str(split): list(names) for split, names in subsets.items()}


def _by_stem(
  found: list[OriginalFile],
  folder: Folder,
  languages: tuple[str, ...],
  subsets: dict[str, list[str]],
  source_language: str | None,
) -> dict[tuple[str, str], dict[str, OriginalFile]]:
  """Maps (split, name without the language) to the files by language."""
  groups: dict[tuple[str, str], dict[str, OriginalFile]] = {}
  if folder.given:
    for split, files in folder.given.items():
      for file in files:
        language, stem = _language(file, languages, folder, source_language)
        if language is None:
          raise UserError(
            "a file name does not contain its language", file=file, expected=" or ".join(f"*.{x}" for x in languages)
          )
        groups.setdefault((split, stem), {})[language] = file
    return groups
  for file in found:
    language, stem = _language(file, languages, folder, source_language)
    if language is None:
      continue
    split, name = _split_of(stem, subsets)
    groups.setdefault((split, name), {})[language] = file
  return groups


def _language(
  file: OriginalFile, languages: tuple[str, ...], folder: Folder, source_language: str | None
) -> tuple[str | None, str]:
  """Returns the language of a file and the rest of its name, which its counterpart shares."""
  parts = [part for part in re.split(r"[^A-Za-z0-9]+", file.name) if part]
  lowered = [part.lower() for part in parts]
  places = [i for i, part in enumerate(lowered) if part in languages]
  roles = [i for i, part in enumerate(lowered) if part in _SOURCE + _TARGET]
  if places:
    dropped = {places[-1], *roles}
    return lowered[places[-1]], "-".join(p for i, p in enumerate(parts) if i not in dropped)
  if roles:
    source = source_language or _first_language(folder, languages)
    if source not in languages:
      raise UserError(
        "cannot determine which language is the source",
        file=file,
        known=", ".join(languages),
        try_=f"--source_language={languages[0]}",
      )
    other = next(x for x in languages if x != source)
    language = source if lowered[roles[0]] in _SOURCE else other
    return language, "-".join(p for i, p in enumerate(parts) if i != roles[0])
  return None, file.name


def _first_language(folder: Folder, languages: tuple[str, ...]) -> str | None:
  """Returns the source language from the folder's name: `en_de_10k` is English to German."""
  words = re.split(r"[^a-z]+", folder.root.resolve().name.lower())
  return next((word for word in words if word in languages), None)


def _split_of(stem: str, subsets: dict[str, list[str]]) -> tuple[str, str]:
  """Returns the split of a corpus, and the name in TFDS's row keys."""
  flat = re.sub(r"[^a-z0-9]", "", stem.lower())
  for split, names in subsets.items():
    for name in names:
      if name.replace("_", "") in flat:
        return split, name
  return split_named_by(stem) or "train", stem


def _rows(split: SourceSplit, pairs: list[tuple[str, dict[str, OriginalFile]]]) -> Iterator[KeyedRow]:
  for name, files in pairs:
    (first, one), (second, other) = files.items()
    for number, (left, right) in enumerate(itertools.zip_longest(_sentences(one), _sentences(other))):
      if left is None or right is None:
        longer, shorter = (other, one) if left is None else (one, other)
        raise UserError(
          "parallel files differ in their number of lines",
          file=shorter,
          ends_at=f"line {number:,}",
          while_=f"{longer} has more",
        )
      if not left or not right:
        if left or right:
          split.left_out["with one side empty"] += 1
        continue
      yield f"{name}/0/{number}", {first: left, second: right}


def _sentences(file: OriginalFile) -> Iterator[str]:
  # A carriage return inside a sentence does not end a line: the two files would get out of step.
  for _, line in file.lines(newline="\n"):
    if not file.name.endswith(".sgm"):
      yield line
    elif segment := _SEGMENT.match(line):
      yield segment[1]
