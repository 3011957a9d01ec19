"""Finds the user code that a task depends on: its functions and the user functions and values they use."""

from __future__ import annotations

import builtins
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Closure:
  """Walks from functions to what they use. Libraries, including t5like, are not followed.

  `values` adds to the code and its plain global values all that objects, containers and partials hold, and arrays.
  Without `code`, these values are all.
  """

  def __init__(self, roots: Iterable[Any], code: bool = True, values: bool = False):
    self.modules: set[str] = set()  # user modules that contain any of the code
    self._code, self._values = code, values
    self._parts: dict[str, str] = {}
    self._seen: set[int] = set()
    self._kept: list[Any] = []  # keeps objects alive, so that ids stay unique
    for number, root in enumerate(roots):
      self._walk(root, str(number))

  @property
  def digest(self) -> str:
    return hashlib.sha256("\n".join(f"{k}: {v}" for k, v in sorted(self._parts.items())).encode()).hexdigest()[:16]

  def _walk(self, value: Any, path: str) -> None:
    """Follows a value that is found at a path such as `my_tasks.clean:TABLE.rows`."""
    if self._values and (text := _text(value)) is not None:
      self._parts[path] = text
      return
    if id(value) in self._seen or isinstance(value, _PLAIN):
      return
    self._seen.add(id(value))
    self._kept.append(value)
    if isinstance(value, functools.partial):
      self._walk_all([("function", value.func), *enumerate(value.args), *value.keywords.items()], path)
    elif isinstance(value, list | tuple):
      self._walk_all(enumerate(value), path)
    elif isinstance(value, set | frozenset):
      self._walk_all(((_name(inner), inner) for inner in value), path)
    elif isinstance(value, dict):
      self._walk_all(((_name(key), inner) for key, inner in value.items()), path)
    elif isinstance(value, types.MethodType):
      self._walk_all([("function", value.__func__), ("self", value.__self__)], path)
    elif isinstance(value, types.FunctionType):
      if self._code:
        self._walk_function(value, path)
    elif isinstance(value, type):
      if self._code and is_user_module(value.__module__):
        self._note(value)
        members = {name: getattr(m, "__func__", getattr(m, "fget", m)) for name, m in vars(value).items()}
        self._walk_all(((name, m) for name, m in members.items() if not _is_plain(m)), _name(value))
    elif not isinstance(value, types.ModuleType) and is_user_module(type(value).__module__):
      self._walk(type(value), path)
      self._walk_all(_fields(value), path)

  def _walk_all(self, members: Iterable[tuple[Any, Any]], path: str) -> None:
    for name, value in members:
      self._walk(value, f"{path}.{name}")

  def _walk_function(self, function: types.FunctionType, path: str) -> None:
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
      self._walk(wrapped, path)
    if not is_user_module(function.__module__):
      for cell in _cells(function):  # a library's decorator around a user function
        if callable(cell):
          self._walk(cell, path)
      return
    self._note(function)
    for name, value in _used(function):
      where = f"{function.__module__}.{function.__qualname__}:{name}"
      if _is_plain(value):
        self._parts[where] = _stable_repr(value)
      else:
        self._walk(value, where)

  def _note(self, code: Any) -> None:
    self.modules.add(code.__module__)
    try:
      source = inspect.getsource(code)
    except (OSError, TypeError):
      source = repr(getattr(code, "__code__", code).__class__)
    self._parts[f"{code.__module__}.{code.__qualname__}"] = source


def _cells(function: types.FunctionType) -> list[Any]:
  found = []
  for cell in function.__closure__ or ():
    try:
      found.append(cell.cell_contents)
    except ValueError:  # not bound yet
      pass
  return found


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
  """Yields names and values of the globals, closure variables and defaults of a function."""
  names, codes = set(), [function.__code__]
  while codes:
    code = codes.pop()
    names |= set(code.co_names)
    codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
  for name in sorted(names):
    value = function.__globals__.get(name, getattr(builtins, name, None))
    if isinstance(value, types.ModuleType):
      if is_user_module(value.__name__):  # as in helpers.clean: every used name that the module defines
        yield from ((f"{name}.{other}", getattr(value, other)) for other in sorted(names) if hasattr(value, other))
    elif value is not None:
      yield name, value
  yield from zip(function.__code__.co_freevars, _cells(function), strict=False)
  yield "defaults", (function.__defaults__, function.__kwdefaults__)


def _name(value: Any) -> str:
  """Returns a name that is the same in every process."""
  return _stable_repr(value) if _is_plain(value) else getattr(value, "__qualname__", type(value).__qualname__)


def _fields(instance: Any) -> Iterator[tuple[str, Any]]:
  yield from getattr(instance, "__dict__", {}).items()
  for kind in type(instance).__mro__:
    names = kind.__dict__.get("__slots__", ())
    for name in (names,) if isinstance(names, str) else names:
      if name not in ("__dict__", "__weakref__") and hasattr(instance, name):
        yield name, getattr(instance, name)


def _text(value: Any) -> str | None:
  """Returns a text that differs for different values; None for those with an identity, such as functions."""
  if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
    return f"{value.dtype}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
  if isinstance(value, np.ndarray):
    return _text(value.tolist())
  if isinstance(value, re.Pattern):
    return f"{value.pattern!r} {value.flags}"
  if type(value).__module__.startswith("tensorflow.") and hasattr(value, "numpy"):  # a constant
    return _text(np.asarray(value.numpy()))
  if type(value).__name__ in ("DType", "TensorShape"):  # of TensorFlow
    return repr(value)
  return _stable_repr(value) if _is_plain(value) else None


def _stable_repr(value: Any) -> str:
  """Returns `repr`, but with sets in order: that of strings differs from process to process."""
  if isinstance(value, set | frozenset):
    return f"{{{', '.join(sorted(map(_stable_repr, value)))}}}"
  if isinstance(value, tuple):
    return f"({', '.join(map(_stable_repr, value))}{',' * (len(value) == 1)})"
  if isinstance(value, list):
    return f"[{', '.join(map(_stable_repr, value))}]"
  if isinstance(value, dict):
    return f"{{{', '.join(f'{_stable_repr(k)}: {_stable_repr(v)}' for k, v in value.items())}}}"
  return repr(value)


def _is_plain(value: Any) -> bool:
  if isinstance(value, list | tuple | set | frozenset):
    return all(map(_is_plain, value))
  if isinstance(value, dict):
    return all(_is_plain(part) for item in value.items() for part in item)
  return isinstance(value, _PLAIN)


def is_user_module(module: str | None) -> bool:
  """Returns whether a module is user code: not part of Python, an installed package, or t5like."""
  if not module or module.partition(".")[0] in (*sys.builtin_module_names, "t5like"):
    return False
  found = sys.modules.get(module)
  path = getattr(found, "__file__", None)
  if path is None:
    return module == "__main__"
  return not path.startswith(LIBRARIES)
