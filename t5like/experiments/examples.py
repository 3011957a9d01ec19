"""Rows in memory, for tasks whose data is a file: CORPUS_FILES={"train": save_examples(rows)}."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.storage import DEFAULT_ROOT


def save_examples(rows: Iterable[Mapping[str, Any]], folder: str = f"{DEFAULT_ROOT}/examples") -> str:
  """Writes rows as JSON lines and returns the file, for CORPUS_FILES; the same rows are the same file.

  Args:
    rows: dicts, a DataFrame of pandas, or anything that yields dicts, such as a Hugging Face data set. For a task
      `NAME_text_to_text` with inputs and targets; `NAME_classification`: text, optionally text_pair, and label;
      `NAME_embedding`: anchor and positive, optionally negative; any other name is a corpus with text.
    folder: where to write the file.
  """
  records = rows.to_dict("records") if hasattr(rows, "columns") and hasattr(rows, "to_dict") else rows
  if isinstance(records, str | Mapping) or not isinstance(records, Iterable):
    raise UserError(f"not rows: {type(rows).__name__}", expected="a list of dicts, or a DataFrame")
  lines = [_line(number, row) for number, row in enumerate(records)]
  if not lines:
    raise UserError("there are no rows")
  text = "".join(lines).encode()
  path = storage.as_path(folder) / f"{hashlib.sha256(text).hexdigest()[:16]}.jsonl"
  if not path.is_file():
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_atomic(path, text)
  return str(path)


def _line(number: int, row: Any) -> str:
  if not isinstance(row, Mapping):
    raise UserError(f"row {number} is not a dict: {row!r}")
  try:
    return json.dumps(dict(row), ensure_ascii=False, allow_nan=False, default=_plain) + "\n"
  except (TypeError, ValueError) as error:  # such as nan, which pandas has for a missing value
    raise UserError(f"row {number} cannot be written as JSON: {error}", row=repr(dict(row))[:200]) from None


def _plain(value: Any) -> Any:
  """Returns numpy's numbers and strings as Python's."""
  if hasattr(value, "item") and not getattr(value, "shape", ()):
    return value.item()
  raise TypeError(f"{type(value).__name__} {value!r}")
