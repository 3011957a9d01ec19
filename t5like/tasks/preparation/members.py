"""Data sets in JSON lines whose fields are their features, and plain-text corpora.

CNN/DailyMail, XSum, C4 (`c4-train.00000-of-01024.json.gz`) and Wikipedia are distributed in this format.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from t5like.errors import UserError
from t5like.files import storage
from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit, check_row, json_objects
from t5like.tasks.preparation.files import Folder, OriginalFile, split_named_by

# Fields that public files may omit, and their defaults.
_OPTIONAL = {
  "c4": {"url": "", "timestamp": "", "content-type": "", "content-length": ""},
  "wikipedia": {"title": ""},
  "cnn_dailymail": {"publisher": "", "id": ""},
}

# How original files start, next to which others may be: those of MultiNLI next to SNLI's.
_ORIGINAL = {"snli": "snli_1.0_"}

JSON_ENDINGS = (".jsonl", ".json", ".ndjson")
TEXT_ENDINGS = (".txt", ".text")
_OTHER_ENDINGS = (".parquet", ".arrow", ".feather", ".zst", ".lz4", ".br", ".7z", ".tar", ".tgz", ".tfrecord", ".pdf")

# Units of a document in plain text.
DOCUMENTS = ("line", "paragraph", "file")


def holds_json(file: OriginalFile) -> bool:
  """Returns whether a file has JSON lines, by its ending; without one (part-00000), by its first line."""
  name = file.name.lower()
  if name.endswith((*JSON_ENDINGS, *TEXT_ENDINGS)):
    return name.endswith(JSON_ENDINGS)
  if name.endswith(_OTHER_ENDINGS):
    raise UserError(
      f"cannot read {os.path.splitext(name)[1]} files",
      file=file,
      expected="JSON lines or text, plain, .gz, .xz, .bz2 or .zip",
    )
  first = next((line for _, line in file.lines() if line.strip()), "")
  try:
    return isinstance(storage.parse_json(first, object), dict)
  except json.JSONDecodeError:
    return False
  except ValueError:  # JSON that cannot be read
    return first.lstrip().startswith("{")


def find_splits(dataset: Dataset, folder: Folder, documents: str = "line") -> list[SourceSplit]:
  takes_text = "text" in dataset.features
  endings = JSON_ENDINGS + (TEXT_ENDINGS if takes_text else ())
  by_split: dict[str, list[OriginalFile]] = {split: list(files) for split, files in folder.given.items()}
  if not by_split:
    files = _data_files(folder, dataset, endings)
    named = [file for file in files if split_named_by(file.name)]
    for file in named or files:  # if no name contains a split, all are training data
      by_split.setdefault(split_named_by(file.name) or "train", []).append(file)
  looked_for = f"files with the split in their name that end in {', '.join(endings)} (plain, .gz, .xz, .bz2 or .zip)"
  usual = [s for s in ("train", "validation", "test") if s != "test" or dataset.name not in ("c4", "wikipedia")]
  return [
    SourceSplit(
      split,
      functools.partial(_rows, dataset=dataset, files=by_split[split], documents=documents)
      if split in by_split
      else None,
      looked_for,
    )
    for split in dict.fromkeys((*usual, *by_split))
  ]


def _data_files(folder: Folder, dataset: Dataset, endings: tuple[str, ...]) -> list[OriginalFile]:
  """Returns the files directly in the folder, or those in a subfolder named after the data set."""
  for place in (folder.root, folder.root / dataset.title, folder.root / dataset.name, folder.root / "text"):
    if place.is_dir():
      found = [f for f in Folder(place).all_files() if f.name.endswith(endings)]
      if found:
        prefix = _ORIGINAL.get(dataset.name)
        original = [f for f in found if prefix and f.name.startswith(prefix)]
        return original or found
  return []


def _rows(split: SourceSplit, dataset: Dataset, files: list[OriginalFile], documents: str) -> Iterator[KeyedRow]:
  optional = _OPTIONAL.get(dataset.name, {})
  number = 0
  for file in files:
    if file.name.endswith(TEXT_ENDINGS):
      rows: Iterator[tuple[int, dict[str, Any]]] = (
        (line, {"text": text}) for line, text in text_documents(file, documents)
      )
    else:
      rows = json_objects(file)
    for line, record in rows:
      row = _from_snli(record) if dataset.name == "snli" else _unwrap_translation(dataset, record)
      if not optional.keys() <= row.keys():
        row = optional | row
      yield number, check_row(dataset.features, row, file, line)
      number += 1


def _from_snli(record: dict[str, Any]) -> dict[str, Any]:
  """Returns a row of the original files of SNLI (snli_1.0_train.jsonl) with the names of TFDS, others unchanged."""
  if "gold_label" not in record:
    return record
  names = {"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"}
  row = {name: record[original] for original, name in names.items() if original in record}
  if row["label"] == "-":  # annotators did not agree
    row["label"] = -1
  return row


def _unwrap_translation(dataset: Dataset, record: dict[str, Any]) -> dict[str, Any]:
  """Unwraps the field `translation`, in which Hugging Face nests a language pair."""
  if isinstance(dataset.features, tfds.features.Translation) and isinstance(record.get("translation"), dict):
    return record["translation"]
  return record


def text_documents(file: OriginalFile, documents: str) -> Iterator[tuple[int, str]]:
  """Yields the documents of a text file with their first line numbers: lines, paragraphs, or the entire file."""
  if documents not in DOCUMENTS:
    raise UserError(f"invalid unit of a document: {documents!r}", known=", ".join(DOCUMENTS))
  if documents == "file":
    text = file.text().strip()
    if text:
      yield 1, text
    return
  first, block = 0, []
  for number, line in file.lines():
    if documents == "line":
      if line.strip():
        yield number, line
    elif line.strip():
      first = first if block else number
      block.append(line)
    elif block:
      yield first, "\n".join(block)
      block = []
  if block:
    yield first, "\n".join(block)
