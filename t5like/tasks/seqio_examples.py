"""Examples in seqio's form, with bytes and NumPy arrays, and in ours, with text and lists, as JSON holds them.

Postprocessors of users are called with seqio's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Postprocessor = Callable[..., Any]


def plain(value: Any) -> Any:
  """Converts bytes to str and arrays to lists, for JSON."""
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  if isinstance(value, bytes):
    return value.decode("utf-8", errors="replace")
  if isinstance(value, list):
    return [plain(v) for v in value]
  if isinstance(value, dict):
    return {name: plain(v) for name, v in value.items()}
  return value


def is_ours(function: Callable) -> bool:
  """Whether a function is t5like's, not a user's or another library's."""
  while isinstance(function, functools.partial):
    function = function.func
  return (getattr(function, "__module__", None) or "").partition(".")[0] == "t5like"


def as_seqio_calls(postprocess: Postprocessor) -> Postprocessor:
  """Returns a postprocessor that takes examples in our form; t5like's own read both."""
  if is_ours(postprocess):
    return postprocess

  def called(text: Any, example: Mapping[str, Any], is_target: bool) -> Any:
    return postprocess(text, example=seqio_example(example), is_target=is_target)

  return called


def seqio_example(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of an example as `tfds.as_numpy` does."""
  return {name: _as_numpy(value) for name, value in fields.items()}


def _as_numpy(value: Any) -> Any:
  if isinstance(value, str):
    return value.encode(errors="replace")
  if isinstance(value, float):  # float32 unless it has more digits
    single = np.float32(value)
    return single if float(single) == value or value != value else np.float64(value)
  if isinstance(value, bool | int):
    return np.array(value)[()]
  if isinstance(value, dict):
    return seqio_example(value)
  if not isinstance(value, list):
    return value
  parts = [_as_numpy(part) for part in value]
  if all(isinstance(part, np.number | np.bool_) for part in parts):
    return np.array(parts)
  shapes = {part.shape if isinstance(part, np.ndarray) else None for part in parts}
  if len(shapes) == 1 and None not in shapes:
    return np.stack(parts)
  array = np.empty(len(parts), object)
  array[:] = parts
  return array
