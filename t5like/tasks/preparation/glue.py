"""GLUE's tab-separated files, in the layout of its official archives (Wang et al. 2018)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from t5like.errors import UserError
from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit, splits_of_files
from t5like.tasks.preparation.files import Folder, OriginalFile

# CoLA's train and dev files are the only ones without a header.
_COLA_COLUMNS = ("source", "is_acceptable", "note", "sentence")
_MSR_COLUMNS = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")


def find_splits(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  if dataset.config == "mrpc":
    return _mrpc_splits(folder)
  return splits_of_files(folder, _file_names(dataset), functools.partial(_rows, dataset=dataset))


def _file_names(dataset: Dataset) -> dict[str, tuple[str, ...]]:
  """Maps each split to its file and alternative names of it."""
  if dataset.config == "ax":
    return {"test": ("diagnostic/diagnostic.tsv", "AX/diagnostic.tsv", "AX/AX.tsv", "diagnostic/AX.tsv")}
  folder = dataset.builder.builder_config.data_dir
  if dataset.config.startswith("mnli"):
    kinds = [k for k in ("matched", "mismatched") if dataset.config in ("mnli", f"mnli_{k}")]
    both = len(kinds) == 2
    files = {"train": ("MNLI/train.tsv",)} if both else {}
    for split, stem in (("validation", "dev"), ("test", "test")):
      files |= {f"{split}_{kind}" if both else split: (f"{folder}/{stem}_{kind}.tsv",) for kind in kinds}
    return files
  stems = {"train": "train", "validation": "dev", "test": "test"}
  return {
    split: (f"{folder}/{stem}.tsv", *((f"{folder}v2/{stem}.tsv",) if folder == "QNLI" else ()))
    for split, stem in stems.items()
  }


def _rows(split: SourceSplit, dataset: Dataset, file: OriginalFile) -> Iterator[KeyedRow]:
  config = dataset.builder.builder_config
  headless = dataset.config == "cola" and split.name != "test"
  for index, (line, row) in enumerate(
    _table(file, _COLA_COLUMNS if headless else None, split, dataset.config == "qqp")
  ):
    if row is None:
      continue
    example: dict[str, Any] = {}
    for feature, column in config.text_features.items():
      if column not in row:
        raise file.malformed(1, f"a column {column!r}", ", ".join(row))
      example[feature] = row[column]
    example["label"] = _label(row.get(config.label_column), config, file, line, split)
    example["idx"] = index
    yield index, example


def _table(
  file: OriginalFile, columns: tuple[str, ...] | None, split: SourceSplit, gaps: bool = False
) -> Iterator[tuple[int, dict[str, str] | None]]:
  """Yields rows by column name. Like TFDS, it does not interpret quotes and skips empty lines.

  QQP's train file has rows broken by a line end (`gaps`): like TFDS, it counts and skips them.
  """
  for line, text in file.lines():
    if columns is None:
      columns = tuple(text.split("\t"))
      continue
    if not text:
      continue
    cells = text.split("\t")
    if gaps and (len(cells) < len(columns) or (columns[-1] == "is_duplicate" and not cells[len(columns) - 1])):
      split.left_out["with missing columns"] += 1
      yield line, None
    elif len(cells) != len(columns) and not gaps:
      raise file.malformed(
        line, f"{len(columns)} columns separated by tabs ({', '.join(columns)})", f"{len(cells)}: {text}"
      )
    else:
      yield line, dict(zip(columns, cells, strict=False))


def _label(value: str | None, config: Any, file: OriginalFile, line: int, split: SourceSplit) -> Any:
  """Returns a class name, a class number or, for STS-B, a score; -1 if the file has no labels."""
  if value is None:
    if split.name == "train" or split.name.startswith("validation"):
      raise file.malformed(1, f"a column {config.label_column!r}", "none of that name")
    return np.float32(-1) if not config.label_classes else -1
  if not config.label_classes:
    try:
      return np.float32(value)
    except ValueError:
      raise file.malformed(line, "a score from 0 to 5", value) from None
  if value in config.label_classes:
    return value
  if value.isdigit() and int(value) < len(config.label_classes):
    return int(value)
  numbers = f"0 to {len(config.label_classes) - 1}"
  raise file.malformed(line, f"a label: {', '.join(config.label_classes)}, or {numbers}", value)


def _mrpc_splits(folder: Folder) -> list[SourceSplit]:
  """Finds MRPC's splits in Microsoft's files and GLUE's list of development ids, or in the three files made from them.

  TFDS sets `idx` to the row of Microsoft's training file, which contains train and validation. The files
  made from it lack that number, so `idx` is the row of each file instead.
  """
  combined = folder.find("MRPC/msr_paraphrase_train.txt")
  ids = folder.find("MRPC/mrpc_dev_ids.tsv", "MRPC/dev_ids.tsv")
  test = folder.find("MRPC/msr_paraphrase_test.txt")
  tables = {
    split: folder.file_of(split, f"MRPC/{stem}.tsv")
    for split, stem in (("train", "train"), ("validation", "dev"), ("test", "test"))
  }
  if combined and not ids and not tables["train"]:
    raise UserError(
      "Microsoft's training file contains both GLUE's train and validation rows",
      file=combined,
      missing="MRPC/mrpc_dev_ids.tsv, which lists the validation rows",
    )
  splits = []
  for split, table in tables.items():
    looked_for = f"MRPC/msr_paraphrase_train.txt with mrpc_dev_ids.tsv, or MRPC/{split}.tsv"
    if split == "test":
      file, development_ids = (test or table), None
    else:
      file, development_ids = (combined, ids) if combined and ids else (table, None)
    rows = functools.partial(_mrpc_rows, file=file, development_ids=development_ids) if file else None
    splits.append(SourceSplit(split, rows, looked_for))
  return splits


def _mrpc_rows(split: SourceSplit, file: OriginalFile, development_ids: OriginalFile | None) -> Iterator[KeyedRow]:
  wanted = None
  if development_ids:
    wanted = {tuple(text.split("\t")[:2]) for _, text in development_ids.lines()}
  for index, (line, row) in enumerate(_table(file, None, split)):
    if missing := [c for c in _MSR_COLUMNS if c not in row and not (c == "Quality" and split.name == "test")]:
      raise file.malformed(1, f"a column {missing[0]!r}", ", ".join(row))
    if wanted is not None and ((row["#1 ID"], row["#2 ID"]) in wanted) != (split.name == "validation"):
      continue
    label = -1
    if split.name != "test":
      if row["Quality"] not in ("0", "1"):
        raise file.malformed(line, "0 or 1 as Quality", row["Quality"])
      label = int(row["Quality"])
    yield index, {"sentence1": row["#1 String"], "sentence2": row["#2 String"], "label": label, "idx": index}
