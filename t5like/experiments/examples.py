"""Rows in memory, for tasks whose data is a file: CORPUS_FILES={"train": save_examples(rows)}."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.source_files import check_is_file, training_split
from t5like.files.storage import DEFAULT_ROOT

# Fields that tasks read: all rows must have the same.
_FIELDS = (
  "inputs", "targets", "text", "text_pair", "label", "tokens", "tags", "anchor", "positive", "negative", "query",
  "document", "sentence1", "sentence2", "score", "question", "context", "answers",
)  # fmt: skip
# Methods of tables that return dicts, and their arguments: of polars, pyarrow and pandas.
_TABLES = {"to_dicts": (), "to_pylist": (), "to_dict": ("records",)}


def save_examples(rows: Iterable[Mapping[str, Any]], folder: str = f"{DEFAULT_ROOT}/examples") -> str:
  """Writes rows as JSON lines and returns the file, for CORPUS_FILES; the same rows are the same file.

  Args:
    rows: dicts, a table of pandas, polars or pyarrow, or anything that yields dicts, such as a Hugging Face data set.
      For a task `NAME_text_to_text` with inputs and targets; `NAME_classification`: text, optionally text_pair, and
      label; `NAME_tagging`: tokens and tags; `NAME_spans`: question, context and answers, as in SQuAD;
      `NAME_embedding`: anchor and positive, optionally negative; any other name is a corpus with text.
    folder: where to write the file.
  """
  if not isinstance(folder, str | os.PathLike):
    raise UserError(f"invalid folder: {folder!r}", expected="a path")
  to_records = next((name for name in _TABLES if hasattr(rows, "columns") and hasattr(rows, name)), None)
  records = getattr(rows, to_records)(*_TABLES[to_records]) if to_records else rows
  if isinstance(records, str | Mapping) or not isinstance(records, Iterable):
    raise UserError(f"not rows: {type(rows).__name__}", expected="a list of dicts, or a DataFrame")
  lines, first = [], frozenset()
  for number, row in enumerate(records):
    lines.append(_line(number, row))
    fields = {name for name in _FIELDS if row.get(name) is not None}
    first = first or fields | {name for name in _FIELDS if name in row}
    if different := sorted(fields ^ first):
      lacking, other = (number, 0) if different[0] in first else (0, number)
      because = f"row {other} has it" if other != lacking else ""
      raise UserError(f"row {lacking} has no {different[0]}", because=because, row=repr(dict(row))[:200])
  if not lines:
    raise UserError("there are no rows")
  text = b"".join(lines)
  path = storage.as_path(folder) / f"{hashlib.sha256(text).hexdigest()[:16]}.jsonl"
  if not path.is_file():
    with storage.write_errors("the rows", file=path, try_="folder=..., another folder"):
      storage.write_atomic(path, text)
  return str(path)


def count_rows(files: Any) -> int | None:
  """Returns the number of JSON lines for training in CORPUS_FILES; None if they are not here, or not JSON lines."""
  pattern = files.get(training_split(files)) if isinstance(files, Mapping) and files else None
  paths = storage.matching(pattern) if isinstance(pattern, str) and not storage.is_remote(pattern) else []
  count = 0
  for path in paths:
    check_is_file(Path(path))
    name = path.removesuffix(".gz")
    if not name.endswith((".jsonl", ".json", ".ndjson")):
      return None
    with (open if name == path else gzip.open)(path, "rb") as lines:
      count += sum(1 for line in lines if line.strip())
  return count or None


def _line(number: int, row: Any) -> bytes:
  """Returns a row as a JSON line, without values of other fields than those of tasks that JSON cannot express."""
  if not isinstance(row, Mapping):
    raise UserError(f"row {number} is not a dict: {row!r}")
  try:
    return _json(row)
  except (TypeError, ValueError):  # such as nan, which pandas has for a missing value, or half a character
    return _json({name: value for name, value in row.items() if _is_json(number, name, value)})


def _is_json(number: int, name: Any, value: Any) -> bool:
  try:
    return bool(_json({name: value}))
  except (TypeError, ValueError) as error:
    if name not in _FIELDS:
      return False
    missing = isinstance(value, float) and value != value
    raise UserError(
      f"row {number} has no {name}: nan" if missing else f"row {number}: invalid {name}: {value!r:.100}",
      because="" if missing else error,
      try_=f"table.dropna(subset=[{name!r}])" if missing else "",
    ) from None


def _json(row: Mapping[str, Any]) -> bytes:
  return (json.dumps(dict(row), ensure_ascii=False, allow_nan=False, default=_plain) + "\n").encode()


def _plain(value: Any) -> Any:
  """Returns numbers, strings and arrays of numpy as Python's."""
  if hasattr(value, "tolist"):
    return value.tolist()
  raise TypeError(f"{type(value).__name__} {value!r}")
