"""SWAG's CSV files: the start of a sentence and four endings per row (Zellers et al. 2018)."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit, splits_of_files
from t5like.tasks.preparation.files import Folder, OriginalFile

ENDINGS = tuple(f"ending{number}" for number in range(4))
_FILES = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}
_TEXTS = ("sent1", "sent2", *ENDINGS)


def features() -> tfds.features.FeaturesDict:
  """Returns the columns that models use, with a label of -1 in the test set and the number of the row as `idx`."""
  texts = {name: tfds.features.Text() for name in ("video-id", *_TEXTS)}
  return tfds.features.FeaturesDict(
    {**texts, "label": tfds.features.ClassLabel(names=list(ENDINGS)), "idx": tfds.features.Scalar(np.int32)}
  )


def find_splits(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  del dataset
  names = {split: (name, f"swag/{name}", f"data/{name}") for split, name in _FILES.items()}
  return splits_of_files(folder, names, _rows)


def _rows(split: SourceSplit, file: OriginalFile) -> Iterator[KeyedRow]:
  table = csv.DictReader((line for _, line in file.lines(newline="", keep_ends=True)), strict=True)
  has_labels = split.name != "test" or "label" in (table.fieldnames or ())
  needed = ("video-id", *_TEXTS, *(["label"] if has_labels else []))
  if missing := [name for name in needed if name not in (table.fieldnames or ())]:
    raise file.malformed(1, f"a column {missing[0]!r}", ", ".join(table.fieldnames or ["none"]))
  try:
    for number, row in enumerate(table):
      if None in row or None in row.values():
        raise file.malformed(table.line_num, f"{len(table.fieldnames)} columns", ", ".join(map(str, row.values())))
      label = row["label"] if has_labels else "-1"
      if label not in ("0", "1", "2", "3") and not (label == "-1" and split.name == "test"):
        raise file.malformed(table.line_num, "0 to 3 as label", label)
      texts = {name: row[name] for name in ("video-id", *_TEXTS)}
      yield number, {**texts, "label": int(label), "idx": number}
  except csv.Error as error:
    raise file.malformed(table.line_num, "a row of CSV", str(error)) from None
