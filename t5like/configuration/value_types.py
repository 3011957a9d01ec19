"""Checks the types of bound values against the parameters' annotations, before anything is built."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from t5like.configuration.statements import Binding, ConfigurableReference, MacroReference
from t5like.errors import UserError, is_number

_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "True or False", types.NoneType: "None"}
_CONTAINERS = (list, tuple, dict)


def check_values(bindings: Sequence[Binding], known: Mapping[str, object]) -> None:
  """Raises UserError for a value of the wrong type; the content of lists and dicts is left to the classes."""
  macros = {b.macro_name: b for b in bindings if b.is_macro}
  last = {b.target: b for b in bindings if not b.is_macro}
  for binding in last.values():
    kinds = _kinds(known.get(binding.selector), binding.parameter)
    given = _resolved(binding, macros)
    if not _fits(given.value, kinds):
      name = given.macro_name if given.is_macro else f"{given.selector}.{given.parameter}"
      raise UserError(
        f"invalid {name}: {given.value!r}",
        file=None if given.where.startswith("--") else given.where,
        expected=_describe(kinds),
        try_=f"--gin.{name}={_suggest(given.value, kinds)}",
      )


def _resolved(binding: Binding, macros: Mapping[str, Binding]) -> Binding:
  """Follows a chain of macros to the binding with the value."""
  passed = []
  while isinstance(binding.value, MacroReference) and binding.value.name in macros:
    name = binding.value.name
    if name in passed:
      raise UserError("circular macros", macros=" -> ".join([*passed, name]), file=binding.where)
    passed.append(name)
    binding = macros[name]
  return binding


def _kinds(target: object, parameter: str) -> tuple[Any, ...]:
  """Returns the types that a parameter's annotation allows; () if it cannot be evaluated."""
  hint = _hints(target).get(parameter)
  if hint is None:
    return ()
  return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


@functools.cache
def _hints(target: object) -> dict[str, Any]:
  try:
    return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
  except (NameError, TypeError):  # names under TYPE_CHECKING
    return {}


def _fits(value: Any, kinds: tuple[Any, ...]) -> bool:
  simple = [kind for kind in kinds if kind in _NAMES]
  if not simple or isinstance(value, MacroReference | ConfigurableReference):
    return True
  if isinstance(value, _CONTAINERS):
    return any(_is_container(kind) for kind in kinds)
  kind = type(value)
  return (
    kind in simple
    or (kind is int and float in simple)
    or any(value in typing.get_args(k) for k in kinds if typing.get_origin(k) is typing.Literal)
  )


def _is_container(kind: Any) -> bool:
  origin = typing.get_origin(kind) or kind
  return inspect.isclass(origin) and issubclass(origin, Sequence | Mapping) and origin is not str


def _describe(kinds: tuple[Any, ...]) -> str:
  words = [_NAMES[kind] for kind in kinds if kind in _NAMES and kind is not types.NoneType]
  if any(_is_container(kind) for kind in kinds):
    words.append("a list")
  if any(kind not in _NAMES and not _is_container(kind) for kind in kinds):
    words.append("a reference such as @NAME()")
  return " or ".join([*words, *(["None"] if types.NoneType in kinds else [])])


def _suggest(value: Any, kinds: tuple[Any, ...]) -> str:
  """Returns the value that was probably intended: 10000 for 1e4, 4 for '4', '5' for 5."""
  if str in kinds and is_number(value):
    return f'''"'{value}'"'''
  for kind in (int, float):
    try:
      if kind in kinds and not isinstance(value, bool) and kind(value) == float(value):
        return str(kind(value))
    except (TypeError, ValueError, OverflowError):
      continue
  return "..."
