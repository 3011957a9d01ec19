"""TREC question types: a label and a question per line, `NUM:date When was Ozzy born ?` (Li and Roth 2002)."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit, check_row, splits_of_files
from t5like.tasks.preparation.files import Folder, OriginalFile

_FILES = {"train": ("train_5500.label", "trec/train_5500.label"), "test": ("TREC_10.label", "trec/TREC_10.label")}


def find_splits(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  return splits_of_files(folder, _FILES, functools.partial(_rows, dataset=dataset))


def _rows(split: SourceSplit, dataset: Dataset, file: OriginalFile) -> Iterator[KeyedRow]:
  del split
  with file.open() as lines:
    for number, line in enumerate(lines):
      # One byte of the training file is not UTF-8 ("sister?city"); TFDS replaces it by a space.
      label, _, text = line.replace(b"\xf0", b" ").strip().decode("utf-8", errors="replace").partition(" ")
      coarse, colon, fine = label.partition(":")
      if not colon or not text:
        raise file.malformed(number + 1, "a label such as NUM:date, a space and a question", f"{label} {text}")
      row = {"label-coarse": coarse, "label-fine": fine, "text": text}
      yield number, check_row(dataset.features, row, file, number + 1)
