"""Finds the user code that a task depends on: its functions and the user functions and values they use."""

from __future__ import annotations

import builtins
import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from typing import Any

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Closure:
  """Walks from functions to what they use. Libraries, including t5like, are not followed."""

  def __init__(self, roots: Iterable[Any]):
    self.modules: set[str] = set()  # user modules that contain any of the code
    self._parts: dict[str, str] = {}
    self._seen: set[int] = set()
    self._kept: list[Any] = []  # keeps objects alive, so that ids stay unique
    for root in roots:
      self._walk(root)

  @property
  def digest(self) -> str:
    return hashlib.sha256("\n".join(f"{k}: {v}" for k, v in sorted(self._parts.items())).encode()).hexdigest()[:16]

  def _walk(self, value: Any) -> None:
    if id(value) in self._seen or isinstance(value, _PLAIN):
      return
    self._seen.add(id(value))
    self._kept.append(value)
    if isinstance(value, functools.partial):
      for inner in (value.func, *value.args, *value.keywords.values()):
        self._walk(inner)
    elif isinstance(value, list | tuple | set | frozenset):
      for inner in value:
        self._walk(inner)
    elif isinstance(value, dict):
      for inner in value.values():
        self._walk(inner)
    elif isinstance(value, types.MethodType):
      self._walk(value.__func__)
      self._walk(value.__self__)
    elif isinstance(value, types.FunctionType):
      self._walk_function(value)
    elif isinstance(value, type):
      if is_user_module(value.__module__):
        self._note(value)
        for member in vars(value).values():
          self._walk(getattr(member, "__func__", getattr(member, "fget", member)))
    elif not isinstance(value, types.ModuleType) and is_user_module(type(value).__module__):
      self._walk(type(value))
      self._walk(getattr(value, "__dict__", {}))

  def _walk_function(self, function: types.FunctionType) -> None:
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
      self._walk(wrapped)
    if not is_user_module(function.__module__):
      for cell in _cells(function):  # a library's decorator around a user function
        if callable(cell):
          self._walk(cell)
      return
    self._note(function)
    for name, value in _used(function):
      if _is_plain(value):
        self._parts[f"{function.__module__}.{function.__qualname__}:{name}"] = _stable_repr(value)
      self._walk(value)

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
