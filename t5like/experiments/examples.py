"""Rows in memory, for tasks whose data is a file: CORPUS_FILES={"train": save_examples(rows)}."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.storage import DEFAULT_ROOT

# Fields that tasks read: every row must have those of the first row.
_FIELDS = (
  "inputs", "targets", "text", "text_pair", "label", "tokens", "tags", "anchor", "positive", "negative", "query",
  "document", "sentence1", "sentence2", "score",
)  # fmt: skip
# Methods of tables that return dicts, and their arguments: of polars, pyarrow and pandas.
_TABLES = {"to_dicts": (), "to_pylist": (), "to_dict": ("records",)}


def save_examples(rows: Iterable[Mapping[str, Any]], folder: str = f"{DEFAULT_ROOT}/examples") -> str:
  """Writes rows as JSON lines and returns the file, for CORPUS_FILES; the same rows are the same file.

  Args:
    rows: dicts, a table of pandas, polars or pyarrow, or anything that yields dicts, such as a Hugging Face data set.
      For a task `NAME_text_to_text` with inputs and targets; `NAME_classification`: text, optionally text_pair, and
      label; `NAME_tagging`: tokens and tags; `NAME_embedding`: anchor and positive, optionally negative; any other
      name is a corpus with text.
    folder: where to write the file.
  """
  to_records = next((name for name in _TABLES if hasattr(rows, "columns") and hasattr(rows, name)), None)
  records = getattr(rows, to_records)(*_TABLES[to_records]) if to_records else rows
  if isinstance(records, str | Mapping) or not isinstance(records, Iterable):
    raise UserError(f"not rows: {type(rows).__name__}", expected="a list of dicts, or a DataFrame")
  lines, fields = [], []
  for number, row in enumerate(records):
    lines.append(_line(number, row))
    fields = fields or [name for name in _FIELDS if name in row]
    if (missing := next((name for name in fields if row.get(name) is None), None)) is not None:
      raise UserError(f"row {number} has no {missing}", row=repr(dict(row))[:200])
  if not lines:
    raise UserError("there are no rows")
  text = b"".join(lines)
  path = storage.as_path(folder) / f"{hashlib.sha256(text).hexdigest()[:16]}.jsonl"
  if not path.is_file():
    with storage.write_errors("the rows", file=path, try_="folder=..., another folder"):
      storage.write_atomic(path, text)
  return str(path)


def _line(number: int, row: Any) -> bytes:
  if not isinstance(row, Mapping):
    raise UserError(f"row {number} is not a dict: {row!r}")
  try:
    return (json.dumps(dict(row), ensure_ascii=False, allow_nan=False, default=_plain) + "\n").encode()
  except (TypeError, ValueError) as error:  # such as nan, which pandas has for a missing value, or half a character
    raise UserError(f"row {number} cannot be written as JSON: {error}", row=repr(dict(row))[:200]) from None


def _plain(value: Any) -> Any:
  """Returns numpy's numbers and strings as Python's."""
  if hasattr(value, "item") and not getattr(value, "shape", ()):
    return value.item()
  raise TypeError(f"{type(value).__name__} {value!r}")
