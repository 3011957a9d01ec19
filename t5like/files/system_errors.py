"""Errors of the operating system, such as a full disk, that other libraries raise as their own."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

_CODE = re.compile(r"(?:os_error_code=\W*|OS error )(\d+)", re.IGNORECASE)  # after long paths: TensorStore, Rust


def error_code(error: BaseException) -> int | None:
  """Returns the operating system's code in an error's message, if there is one."""
  found = _CODE.search(str(error))
  return int(found.group(1)) if found else None


def root_cause(error: BaseException) -> BaseException:
  while error.__cause__ is not None:
    error = error.__cause__
  return error


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
  """Raises errors of other libraries that have the operating system's code as OSError."""
  try:
    yield
  except OSError:
    raise
  except Exception as error:
    if code := error_code(root_cause(error)):
      raise OSError(code, os.strerror(code)) from error
    raise
